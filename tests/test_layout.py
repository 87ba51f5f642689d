"""Guards of the house: where `__init__.py` may not stand, and what every module owes its reader."""

import ast
from pathlib import Path

from source_tree import ROOT, python_files

MAX_LINES = 400


def test_source_roots_and_test_folders_hold_no_init_file() -> None:
    """`operator/__init__.py` would shadow the standard library, and its cousins under tests/ do the same to pytest."""
    roots = [ROOT / name for name in ("operator", "runtime", "kernels", "tests")]
    test_folders = [path for path in (ROOT / "tests").iterdir() if path.is_dir()]
    nested = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    stray = [folder for folder in {*roots, *test_folders, *nested} if (folder / "__init__.py").exists()]

    assert stray == []


def test_every_module_says_what_it_is() -> None:
    """It opens with a docstring."""
    mute = [_name(path) for path in python_files() if not ast.get_docstring(ast.parse(path.read_text()))]

    assert mute == []


def test_every_file_fits_a_reader() -> None:
    """None grows past what one can hold in mind; split it at a noun."""
    lines = {_name(path): len(path.read_text().splitlines()) for path in python_files()}

    assert len(lines) > 50
    assert {name: num_lines for name, num_lines in lines.items() if num_lines > MAX_LINES} == {}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
