"""docs/reference.md is held against the code, both ways: nothing undocumented, nothing documented that does not exist.

The names come out of syntax trees, so that nothing heavy is imported; only `paceline_operator.names`, which is plain
strings, is looked at alive, because its labels are built from a prefix.
"""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import get_args

import pytest
from source_tree import ROOT, calls, nodes, package_files, string_constants

REFERENCE = ROOT / "docs" / "reference.md"
ENVIRONMENT_PREFIXES = r"(PACELINE|HF|AWS|DOCKER|KUBERNETES|TRITON|CUDA|NCCL|OMP|TORCH|POD|OTEL)_[A-Z0-9_]+"
METRIC_TYPES = (
    *("Counter", "Gauge", "Histogram", "Summary", "Info"),
    *("CounterMetricFamily", "GaugeMetricFamily", "HistogramMetricFamily", "SummaryMetricFamily", "InfoMetricFamily"),
)
ROUTE_METHODS = ("get", "post", "put", "delete", "route", "add_api_route", "add_get", "add_post", "add_route", "Route")


def _section(title: str) -> str:
    match = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", REFERENCE.read_text(), re.MULTILINE | re.DOTALL)
    assert match, f"docs/reference.md has no section '## {title}'"
    return match[1]


def _documented(title: str) -> set[str]:
    """The names in backticks in the first cells of a section's tables."""
    rows = re.findall(r"^\|([^|]*)\|", _section(title), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def _literals(call: ast.Call) -> Iterator[str]:
    yield from (arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _flags() -> set[str]:
    return {name for call in calls("add_argument") for name in _literals(call) if name.startswith("-")}


def _subcommands() -> set[str]:
    return {f"paceline {name}" for call in calls("add_parser", "paceline_runtime") for name in list(_literals(call))[:1]}


def _environment() -> set[str]:
    return {text for text in string_constants() if re.fullmatch(ENVIRONMENT_PREFIXES, text)}


def _metrics() -> set[str]:
    """What is exported: literals in the modules named `metrics.py`, and first arguments of metric types anywhere."""
    made = {name for kind in METRIC_TYPES for call in calls(kind) for name in list(_literals(call))[:1]}
    exporters = [path for path in package_files() if path.stem == "metrics"]
    named = set(re.findall(r'"(paceline_[a-z0-9_]+)"', "\n".join(path.read_text() for path in exporters)))
    return {name.removesuffix("_total") for name in made | named}


def _routes() -> set[str]:
    """First arguments of route decorators, where they stand there or are constants of the routes' module."""
    found = {
        name for method in ROUTE_METHODS for call in calls(method, "paceline_runtime") for name in list(_literals(call))[:1]
    }
    routes = vars(importlib.import_module("paceline_runtime.server.http.routes"))
    found |= {value for name, value in routes.items() if name.endswith("_PATH")}
    return {name for name in found if re.fullmatch(r"/[a-z0-9_/{}:-]*", name)}


def _labels() -> set[str]:
    if importlib.util.find_spec("paceline_operator.names") is None:
        return set()
    names = vars(importlib.import_module("paceline_operator.names"))
    texts = {text for name, value in names.items() if not name.startswith("__") for text in _texts(value)}
    return {text for text in texts if re.fullmatch(r"[a-z0-9.-]*(paceline\.dev|keda\.sh)/(?!v\d)[A-Za-z0-9._-]+", text)}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for item in pair for text in _texts(item))
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from (text for item in value for text in _texts(item))


def _assigned_integers(pattern: str) -> dict[str, int]:
    """Module constants by name: `METRICS_PORT = 8080`, `EXIT_CHANGED: Final = 4`."""
    found: dict[str, int] = {}
    for node in nodes():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, int) and isinstance(targets[0], ast.Name):
            found.update({targets[0].id: value.value} if re.fullmatch(pattern, targets[0].id) else {})
    return found


def _ports() -> set[str]:
    """Constants named so, and integers beside a `--port` or a `..._PORT` in a call."""
    constants = {str(value) for value in _assigned_integers(r"(\w+_)?PORT(_\w+)?").values()}
    beside = {
        str(value.value)
        for node in nodes()
        if isinstance(node, ast.Call) and any(re.fullmatch(r"(--.*port|\w+_PORT)", name) for name in _literals(node))
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(value, ast.Constant) and type(value.value) is int
    }
    return constants | beside


def _conditions() -> set[str]:
    return set(importlib.import_module("paceline_operator.names").CONDITIONS)


def _exit_codes() -> set[str]:
    return {str(value) for value in _assigned_integers(r"EXIT_\w+").values()}


CASES = {
    "Command line": lambda: _flags() | _subcommands(),
    "Environment variables": _environment,
    "HTTP routes": _routes,
    "Metrics": _metrics,
    "Labels and annotations": _labels,
    "Conditions": _conditions,
    "Ports": _ports,
    "Exit codes": _exit_codes,
}


@pytest.mark.parametrize("title", CASES)
def test_reference_page_and_code_name_the_same_things(title: str) -> None:
    """Each section lists what the code has, and only that."""
    in_code, in_docs = CASES[title](), _documented(title)
    if title == "Metrics":
        in_docs = {name.removesuffix("_total") for name in in_docs}

    assert sorted(in_code - in_docs) == [], f"missing in docs/reference.md, {title}"
    assert sorted(in_docs - in_code) == [], f"documented under {title}, but not in the code"


def test_reasons_of_conditions_are_given_somewhere() -> None:
    """Whatever stands in backticks beside a condition is a string of the operator's."""
    rows = re.findall(r"^\|[^|]*\|(.*)\|$", _section("Conditions"), re.MULTILINE)
    reasons = {name for row in rows for name in re.findall(r"`([A-Za-z]+)`", row)}

    assert len(reasons) > 15
    assert sorted(reasons - string_constants("paceline_operator")) == []


def test_the_architecture_names_every_message() -> None:
    """Its picture of the two processes has what crosses the socket, and nothing else."""
    messages = importlib.import_module("paceline_runtime.messages")
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = text[text.index("Submit, ") : text.index("```", text.index("Submit, "))]
    crossing = {kind.__name__ for kind in (*get_args(messages.ToEngine), *get_args(messages.FromEngine))}

    assert set(re.findall(r"[A-Z][a-z]+", picture)) == crossing


def test_metrics_that_the_operator_reads_are_exported() -> None:
    """A name that nobody exports would read as zero for ever."""
    read = {text for text in string_constants("paceline_operator") if re.fullmatch(r"paceline_[a-z0-9]+(_[a-z0-9]+)+", text)}

    assert sorted({name.removesuffix("_total") for name in read} - _metrics()) == []


def test_flags_are_written_out() -> None:
    """A flag built at run time would escape the test above."""
    hidden = [ast.unparse(call) for call in calls("add_argument") if not list(_literals(call))]

    assert hidden == []


def test_the_code_was_read() -> None:
    """The comparison above looks at something."""
    assert package_files()
    assert _flags()
