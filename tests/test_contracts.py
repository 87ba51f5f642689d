"""The import directions of the house, as `make check` holds them, held in the test run too."""

import subprocess
import sys
from pathlib import Path

import pytest
from import_circles import circles
from source_tree import PACKAGES, ROOT


def test_import_contracts_are_kept() -> None:
    """Between the packages, between the rooms of each, and away from torch where it must not be."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_and_no_folders_import_each_other_in_a_circle(package: str) -> None:
    """Not even late or for type checkers: what each needs of the other belongs below both."""
    assert circles(PACKAGES[package], package) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "from made.b import x", "b": "import made.a"}, "made.a imports made.b; made.b imports made.a"),
        ({"a": "def late():\n    from . import b", "b": "from .a import x"}, "made.a imports made.b; made.b imports made.a"),
        (
            {"one/a": "from made.two.b import x", "one/c": "", "two/b": "", "two/d": "from made.one import c"},
            "made.one.a imports made.two.b; made.two.d imports made.one.c",
        ),
        ({"one/__init__": "from made.one.a import x", "one/a": "from made.one import x"}, "made.one.__init__ imports"),
    ],
    ids=["files", "late and relative", "folders whose files are in none", "a face and what is behind it"],
)
def test_circles_are_found(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    """The test above can fail: two files, two folders, a folder's face, all with a file beside them that is in no circle."""
    for name, source in {**files, "top": "from made.a import x", "bottom": ""}.items():
        path = tmp_path / "made" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    found = circles(tmp_path, "made")

    assert len(found) == 1
    assert expected in found[0]
