"""Some packages must work where torch is not installed: the operator image, the server's start, `paceline check`."""

import subprocess
import sys

import pytest
from source_tree import module_name, package_files

BLOCKING_IMPORTER = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked by test_torch_free", name=name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocker())
for module in sys.argv[2:]:
    importlib.import_module(module)
"""
OPERATOR_IMAGE = [
    module_name(path) for path in package_files("paceline_operator", "paceline_compat") if path.stem != "__main__"
]
TORCH_FREE_RUNTIME = ("scheduler", "server", "messages", "cli", "fetch")
RUNTIME = [
    name
    for name in map(module_name, package_files("paceline_runtime"))
    if name.split(".")[1:2] and name.split(".")[1] in TORCH_FREE_RUNTIME
]


def _import_all(modules: list[str], *, blocked: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKING_IMPORTER, blocked, *modules]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_operator_image_needs_no_torch() -> None:
    """Every module of the operator and of compat imports with torch and its company out of reach."""
    result = _import_all(OPERATOR_IMAGE, blocked="torch,triton,numpy,transformers,safetensors,gguf")

    assert result.returncode == 0, result.stderr


def test_scheduling_and_server_modules_need_no_torch() -> None:
    """Every torch-free module of the runtime imports with torch out of reach."""
    result = _import_all(RUNTIME, blocked="torch,triton")

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["torch", "triton.language"])
def test_the_blocker_blocks(module: str) -> None:
    """The two tests above can fail."""
    result = _import_all([module], blocked="torch,triton")

    assert "is blocked by test_torch_free" in result.stderr
