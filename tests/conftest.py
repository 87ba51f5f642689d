"""What holds for every test: one thread, interpreted kernels without a GPU, a fixed seed, `gpu` skips with a reason."""

import os
import random
import shutil
import sys

import pytest

# Triton reads its switch when imported and torch sizes its thread pool then, so both come before any test module.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "0" if shutil.which("nvidia-smi") else "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip `gpu` tests where torch sees no CUDA device (torch is imported only when such tests were selected)."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not _has_cuda():
        skip = pytest.mark.skip(reason="torch sees no CUDA device; run `make test-gpu` on a machine with one")
        for item in gpu_items:
            item.add_marker(skip)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A file's tests stay on one worker, for its fixtures' sake; those of the cluster do together, since they share one.

    xdist's own groups would say this, but xdist 3.8 cannot tell pytest 9.2 about them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            return "tests/cluster" if path.startswith("tests/cluster/") else path

    return ByFile(config, log)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """The same random numbers in every test, whatever ran before it and on whichever worker."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
