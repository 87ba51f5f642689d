"""Values: each is documented, has its place in the schema, and contradictions are refused with a sentence."""

import json
import re

import chart_table
import pytest
import yaml
from source_tree import ROOT

CHART = ROOT / "charts" / "paceline"
VALUES = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_every_value_has_a_comment():
    """`# --` before each leaf, as helm-docs reads it."""
    lines = VALUES.splitlines()
    leaves = [i for i, line in enumerate(lines) if re.match(r"\s*\w+: \S", line) and not _inside_documented_map(lines, i)]
    bare = [lines[i] for i in leaves if not lines[i - 1].lstrip().startswith("# --")]

    assert len(leaves) > 50
    assert bare == []


def test_schema_knows_every_value():
    """A value that the schema does not know would be refused; one that only it knows would do nothing."""
    assert _keys(yaml.safe_load(VALUES)) == _schema_keys(SCHEMA)


def test_readme_lists_every_value():
    """The README's table is the comments of values.yaml."""
    assert chart_table.README.read_text().endswith(chart_table.table())


def test_unused_values_do_not_exist():
    """Each value appears in a template."""
    templates = "\n".join(path.read_text() for path in CHART.glob("templates/**/*") if path.is_file())
    leaves = {key.rpartition(".")[2] for key in _schema_keys(SCHEMA)}

    assert sorted(leaf for leaf in leaves if not re.search(rf"\.{leaf}\b", templates)) == []


@pytest.mark.parametrize(
    "values, words",
    [
        ({"replica": 2}, "replica"),
        ({"scope": "Galaxy"}, "scope"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"webhook": {"failurePolicy": "Maybe"}}, "failurePolicy"),
        ({"webhook": {"certificate": {"existingSecret": "mine"}}}, "needs webhook.certificate.caBundle"),
        (
            {"webhook": {"certificate": {"existingSecret": "mine", "caBundle": "eA==", "certManager": {"enabled": True}}}},
            "not both",
        ),
        ({"webhook": {"budgetSeconds": 10, "timeoutSeconds": 10}}, "budgetSeconds must be below"),
        ({"webhook": {"port": 8080}}, "webhook.port must not be 8080"),
    ],
)
def test_wrong_values_are_refused(chart, values, words):
    """Before anything is installed."""
    with pytest.raises(Exception, match=words):
        chart.render(values)


@pytest.mark.parametrize(
    "values, words",
    [
        ({}, "hub.endpoint is not set"),
        ({"webhook": {"enabled": False}}, "webhook.enabled is false"),
        ({"webhook": {"failurePolicy": "Ignore"}}, "let in unchecked"),
        ({"replicas": 1}, "replicas is 1"),
        ({"crds": {"keep": False}}, "deletes every SpeculativeModel"),
    ],
)
def test_notes_warn_of_unsafe_values(chart, values, words):
    """What one chose is said once more after the install."""
    notes = chart.run("install", "release", str(CHART), "--dry-run=client", "--namespace=space", values=values)

    assert words in notes


@pytest.mark.parametrize(
    "values, words",
    [
        ({"replicas": 1, "webhook": {"failurePolicy": "Ignore"}}, "cannot be applied"),
        ({"replicas": 1, "webhook": {"enabled": False}}, "cannot be applied"),
        ({"crds": {"enabled": False, "keep": False}}, "deletes every SpeculativeModel"),
    ],
)
def test_notes_warn_of_nothing_that_cannot_happen(chart, values, words):
    """Without a webhook that must answer nothing is refused, and CRDs of others outlive the chart."""
    assert words not in chart.run("install", "release", str(CHART), "--dry-run=client", "--namespace=space", values=values)


@pytest.mark.parametrize("scope, words", [("Namespace", "apply -n space -f"), ("Cluster", "apply -f")])
def test_notes_apply_the_example_where_it_is_served(chart, scope, words):
    """An operator of one namespace never sees a model in another."""
    values = {"scope": scope}

    assert words in chart.run("install", "release", str(CHART), "--dry-run=client", "--namespace=space", values=values)


def _inside_documented_map(lines, i):
    """Lines of a default that is a map itself (resources, security contexts): the map has the comment."""
    depth = len(lines[i]) - len(lines[i].lstrip())
    for j in range(i - 1, -1, -1):
        indent = len(lines[j]) - len(lines[j].lstrip())
        if lines[j].strip() and not lines[j].lstrip().startswith("#") and indent < depth:
            if lines[j - 1].lstrip().startswith("# --"):
                return True
            depth, i = indent, j
    return False


def _keys(values, path=""):
    found = set()
    for name, value in values.items():
        inner = f"{path}.{name}" if path else name
        is_node = isinstance(value, dict) and value and _node(inner)
        found |= _keys(value, inner) if is_node else {inner}
    return found


def _schema_keys(schema, path=""):
    found = set()
    for name, value in schema["properties"].items():
        inner = f"{path}.{name}" if path else name
        found |= _schema_keys(value, inner) if "properties" in value else {inner}
    return found


def _node(path):
    schema = SCHEMA
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name, {})
    return "properties" in schema
