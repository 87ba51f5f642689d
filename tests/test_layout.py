"""Guards of the house: where `__init__.py` may not stand, and what every module owes its reader."""

import ast
from pathlib import Path

import pytest
from source_tree import ROOT, python_files

FILES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in python_files()]
MAX_LINES = 400


def test_source_roots_and_test_folders_hold_no_init_file() -> None:
    """`operator/__init__.py` would shadow the standard library, and its cousins under tests/ do the same to pytest."""
    roots = [ROOT / name for name in ("operator", "runtime", "kernels", "tests")]
    test_folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]
    nested = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    stray = [folder for folder in {*roots, *test_folders, *nested} if (folder / "__init__.py").exists()]

    assert stray == []


def test_the_files_were_found() -> None:
    """The parametrized guards below look at something."""
    assert len(FILES) > 10


@pytest.mark.parametrize("path", FILES)
def test_module_says_what_it_is(path: Path) -> None:
    """Every module opens with a docstring."""
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no module docstring"


@pytest.mark.parametrize("path", FILES)
def test_module_fits_a_reader(path: Path) -> None:
    """No file grows past what one can hold in mind."""
    num_lines = len(path.read_text().splitlines())

    assert num_lines <= MAX_LINES, f"{path} has {num_lines} lines; split it at a noun"
