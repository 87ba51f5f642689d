"""The checkout as guard tests see it: source roots, modules, what their syntax trees hold. It imports none of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "paceline_operator": ROOT / "operator",
    "paceline_runtime": ROOT / "runtime",
    "paceline_compat": ROOT / "runtime",
    "paceline_kernels": ROOT / "kernels",
}


def package_files(*packages: str) -> list[Path]:
    """Every Python file of the named packages, or of all four."""
    return sorted(path for package in packages or PACKAGES for path in (PACKAGES[package] / package).rglob("*.py"))


def python_files() -> list[Path]:
    """Every Python file that the project keeps: the packages, the tests, the examples."""
    kept = [path for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.py")]
    return sorted([*package_files(), *kept])


def module_name(path: Path) -> str:
    """`.../runtime/paceline_compat/gguf.py` -> `paceline_compat.gguf`; a package's `__init__.py` -> the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def nodes(*packages: str) -> Iterator[ast.AST]:
    """Every syntax node of the named packages, or of all four."""
    for path in package_files(*packages):
        yield from ast.walk(ast.parse(path.read_text(), str(path)))


def string_constants(*packages: str) -> set[str]:
    """Every string literal of the named packages."""
    return {node.value for node in nodes(*packages) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def calls(name: str, *packages: str) -> Iterator[ast.Call]:
    """Every call of a function or method of that name."""
    for node in nodes(*packages):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node
