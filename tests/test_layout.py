"""Guards of the house: where `__init__.py` may not stand, how much a room may hold, what every module owes its reader."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from source_tree import ROOT, package_files, python_files

MAX_LINES = 400
MAX_MODULES = 20


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


def test_every_folder_can_be_taken_in() -> None:
    """Beyond that many modules a newcomer asks for sub-rooms with names."""
    sizes = Counter(_name(path.parent) for path in package_files() if path.name != "__init__.py")

    assert len(sizes) > 20
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def test_tests_lie_in_folders_named_as_the_rooms() -> None:
    """Whoever knows where a module is knows where its tests are; laws that cross rooms have a folder of their own."""
    trees = {
        ROOT / "tests/compat": ROOT / "runtime/paceline_compat",
        ROOT / "tests/kernels": ROOT / "kernels/paceline_kernels",
        ROOT / "tests/operator": ROOT / "operator/paceline_operator",
        ROOT / "tests/runtime": ROOT / "runtime/paceline_runtime",
    }
    files = [(tests, path.relative_to(tests)) for tests in trees for path in tests.rglob("test_*.py")]
    rooms = {(tests, path.parent) for tests, path in files}
    strays = {_name(tests / room) for tests, room in rooms if not (trees[tests] / room / "__init__.py").exists()}
    loose = [(tests, path) for tests, path in files if len(path.parts) == 1]
    homeless = [_name(tests / path) for tests, path in loose if not (trees[tests] / path.name.removeprefix("test_")).exists()]

    assert len(rooms) > 50
    assert strays == {"tests/kernels/laws", "tests/operator/laws", "tests/runtime/laws"}
    assert homeless == [], "a test beside the rooms is named as the module beside them that it is about"


def test_prose_quotes_code_in_single_backticks() -> None:
    """One dialect in every docstring and comment."""
    doubled = re.compile("(?<!`)`{2}(?!`)")

    assert [_name(path) for path in python_files() if doubled.search(path.read_text())] == []


def test_the_architecture_has_a_sentence_for_every_room() -> None:
    """A newcomer reads there which folder is for what."""
    rows = [line for line in (ROOT / "docs/architecture.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall("`([a-z_]+)/`", row)}
    packages = ("paceline_compat", "paceline_operator", "paceline_runtime")
    rooms = {path.parent.name for path in package_files(*packages) if path.name == "__init__.py"} - set(packages)

    assert len(rooms) > 20
    assert rooms - named == set()


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/architecture.md", "docs/reference.md"])
def test_paths_that_a_page_names_are_there(page: str) -> None:
    """A path may begin anywhere inside the checkout; capitals stand for a name of one's own."""
    text = (ROOT / page).read_text()
    modules, links = set(re.findall(r"`([a-z0-9_./]+\.py)`", text)), re.findall(r"\]\((?!https?:)([^)#]+)", text)
    files = {f"/{_name(path)}" for path in python_files()}
    # The file that must not be there.
    missing = {name for name in modules if not any(file.endswith(f"/{name}") for file in files)} - {"operator/__init__.py"}

    assert modules | set(links)
    assert missing == set()
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
