"""What ships: one wheel with four packages, and a chart that speaks of the same version and the same CRDs."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from source_tree import PACKAGES, ROOT, nodes, package_files

CHART = ROOT / "charts" / "paceline"
CRDS = sorted((ROOT / "crds").glob("*.yaml"))
EXTRAS = {
    "paceline_operator": ("operator",),
    "paceline_runtime": ("runtime",),
    "paceline_compat": (),
    "paceline_kernels": ("runtime", "gpu"),
}
# Modules that come with a distribution of another name.
DISTRIBUTIONS = {"zmq": "pyzmq", "fla": "fla-core", "pydantic_core": "pydantic"}


def project() -> dict[str, Any]:
    """The table of that name in pyproject.toml."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def built(target: str, folder: Path) -> Path:
    """The wheel or sdist of this checkout, made without network and without build isolation."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel."""
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        return archive.namelist()


def test_source_archive_holds_what_its_readme_names(tmp_path: Path) -> None:
    """`make` and the linked pages work where it was unpacked, too."""
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    linked = set(re.findall(r"\]\(([\w/.-]+)\)", (ROOT / "README.md").read_text()))
    files = {f"{name}/README.md" if (ROOT / name).is_dir() else name for name in linked}

    assert {"Makefile", "Dockerfile", "CONTRIBUTING.md"} | files <= names


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_imports_is_declared(package: str) -> None:
    """By the project or by the extra that the package is installed with, not by chance through another distribution."""
    declared = [*project()["dependencies"]]
    declared += [line for extra in EXTRAS[package] for line in project()["optional-dependencies"][extra]]
    names = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in declared}
    needed = {DISTRIBUTIONS.get(name, name).replace("-", "_") for name in _imported(package)}

    assert needed
    assert sorted(needed - names) == []


def _imported(package: str) -> set[str]:
    """Top-level modules of others that a package imports, at the top or inside a function."""
    found = {alias.name for node in nodes(package) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in nodes(package) if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - set(PACKAGES)


def test_wheel_holds_exactly_the_four_packages(wheel_names: list[str]) -> None:
    """Nothing else becomes importable on a user's machine."""
    top = {name.split("/")[0] for name in wheel_names if ".dist-info/" not in name}

    assert top == set(PACKAGES)


def test_wheel_holds_every_module_and_the_license(wheel_names: list[str]) -> None:
    """A module that is in the tree is in the wheel; types and license travel along."""
    modules = {str(path.relative_to(root)) for name, root in PACKAGES.items() for path in package_files(name)}
    typed = {f"{name}/py.typed" for name in PACKAGES}

    assert modules | typed <= set(wheel_names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)


def test_chart_and_project_have_one_version() -> None:
    """`helm install` of this chart runs this version of the operator."""
    if not (CHART / "Chart.yaml").exists():
        pytest.skip("charts/paceline/Chart.yaml does not exist yet")

    assert str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]) == project()["version"]


@pytest.mark.parametrize("crd", CRDS, ids=[path.name for path in CRDS])
def test_chart_ships_the_crd_of_the_repository(crd: Path) -> None:
    """crds/ is the source; the chart's copy, link or guarded template says the same."""
    expected = yaml.safe_load(crd.read_text())
    copies = [
        found
        for path in [*CHART.glob("crds/*.yaml"), *CHART.glob("files/**/*.yaml"), *CHART.glob("templates/**/*.yaml")]
        if (found := _crd_without_template_lines(path))["metadata"].get("name") == expected["metadata"]["name"]
    ]

    assert copies, f"the chart holds no copy of {crd.name}"
    assert [copy["spec"] for copy in copies] == [expected["spec"]] * len(copies)


def _crd_without_template_lines(path: Path) -> dict[str, Any]:
    """A chart file as YAML, lines with template actions left out; `{"metadata": {}}` when it holds no CRD."""
    text = path.read_text()
    if "kind: CustomResourceDefinition" not in text:
        return {"metadata": {}}
    return dict(yaml.safe_load("\n".join(line for line in text.splitlines() if "{{" not in line)))
