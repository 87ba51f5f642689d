"""The GPU suite: each test runs on a GPU at real-like sizes (`-m gpu`) and, in the ordinary suite, on a CPU at tiny ones.

What a file measured is printed as a table at the end of the run.
"""

import law_engine
import pytest
import torch
from gpu_scale import Scale

_FIGURES = "figures"


def pytest_addoption(parser):
    """Known only when this folder is named on the command line; the soak is short otherwise."""
    parser.addoption("--disable-cuda-graphs", action="store_true", help="launch every decode step kernel by kernel")
    parser.addoption(
        "--soak-seconds", type=float, default=None, help="length of the soak (default: 5 s, on a CPU three requests a client)"
    )


def pytest_configure(config):
    """Engines without graphs, where that is asked for."""
    if config.getoption("--disable-cuda-graphs"):
        law_engine.DEFAULTS["cuda_graphs"] = False


def pytest_terminal_summary(terminalreporter):
    """The tables, by file; they come with the tests' reports, on whichever worker those ran."""
    tables: dict[str, list[str]] = {}
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        if report.when == "call":
            lines = [line for name, line in report.user_properties if name == _FIGURES]
            tables.setdefault(report.fspath, []).extend(lines)
    for title, lines in tables.items():
        if lines:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line("\n".join(lines))


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def scale(request):
    """Where the test runs, and with it the sizes."""
    return Scale(torch.device(request.param))


@pytest.fixture
def tell(request):
    """Add a line to the file's table."""

    def add(**figures):
        cells = (f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items())
        name = f"{request.node.originalname.removeprefix('test_')[:28]} {request.node.callspec.id}"
        request.node.user_properties.append((_FIGURES, f"{name:<52} " + ", ".join(cells)))

    return add
