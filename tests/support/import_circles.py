"""Circles of imports among the files and folders of a package, found in its syntax trees; nothing is imported.

In every folder the files and sub-folders side by side are one graph: an import anywhere below one of them of anything below
another is an arrow. A circle of files is a circle of what holds them in the deepest folder that holds all of them, so it is
found there.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Place = tuple[str, ...]
"""A file or folder by its path of names, package first."""


def circles(root: Path, package: str) -> list[str]:
    """Each circle of the package in `root`, as the imports that close it; empty where there is none."""
    files = {_place(path, root): path for path in sorted((root / package).rglob("*.py"))}
    arrows: dict[Place, dict[tuple[str, str], str]] = defaultdict(dict)
    for place, path in files.items():
        for imported in _imported(path, place, files):
            depth = next((i for i, (a, b) in enumerate(zip(place, imported, strict=False)) if a != b), None)
            if depth is not None:
                arrow = f"{'.'.join(place)} imports {'.'.join(imported)}"
                arrows[place[:depth]].setdefault((place[depth], imported[depth]), arrow)
    return [circle for folder in sorted(arrows) for circle in _circles_of(arrows[folder])]


def _place(path: Path, root: Path) -> Place:
    """A folder's `__init__.py` is a file in it like the others."""
    return path.relative_to(root).with_suffix("").parts


def _imported(path: Path, place: Place, files: dict[Place, Path]) -> Iterator[Place]:
    """The package's files that one names, late imports and those for type checkers included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (found for alias in node.names if (found := _find(tuple(alias.name.split(".")), files)))
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            base = (*place[: -node.level], *named) if node.level else named
            yield from (found for alias in node.names if (found := _find((*base, alias.name), files) or _find(base, files)))


def _find(name: Place, files: dict[Place, Path]) -> Place | None:
    return next((place for place in (name, (*name, "__init__")) if place in files), None)


def _circles_of(arrows: dict[tuple[str, str], str]) -> Iterator[str]:
    """What remains when names that nobody names, or that name nobody, are taken away one after the other."""
    left = dict(arrows)
    while left:
        sources, targets = {source for source, _ in left}, {target for _, target in left}
        ends = (sources | targets) - (sources & targets)
        if not ends:
            yield "; ".join(sorted(left.values()))
            return
        left = {arrow: text for arrow, text in left.items() if not ends & set(arrow)}
