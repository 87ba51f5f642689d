"""The operator's environment, quantities, events and its command line."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import NOW, make_resource

from paceline_operator.config import from_environment
from paceline_operator.errors import ConfigError
from paceline_operator.main import main, settings_for
from paceline_operator.planning.quantity import parse_quantity, same_quantity
from paceline_operator.status.events import MAX_MESSAGE, event
from paceline_operator.status.status import Change

GOOD = {
    "PACELINE_OPERATOR_IMAGE": "o:1",
    "PACELINE_RUNTIME_IMAGE": "r:1",
    "POD_ID": "operator-a",
    "POD_NAMESPACE": "paceline",
}


def test_the_least_environment_is_enough():
    """Everything else has a default; no namespace means all of them."""
    config = from_environment(GOOD)

    assert (config.clusterwide, config.resync_s, config.webhook_certificates) == (True, 300.0, None)
    assert not from_environment({**GOOD, "PACELINE_WATCH_NAMESPACE": "ml"}).clusterwide


def test_every_wrong_variable_is_named_at_once(tmp_path):
    """One start tells all."""
    bad = {
        "POD_ID": "a",
        "PACELINE_RESYNC_S": "soon",
        "PACELINE_WORKERS": "0",
        "PACELINE_LOG_LEVEL": "LOUD",
        "PACELINE_WEBHOOK_CERTIFICATES": str(tmp_path / "missing"),
    }

    with pytest.raises(ConfigError) as refusal:
        from_environment(bad)

    text = str(refusal.value)
    assert all(name in text for name in {*GOOD, *bad} - {"POD_ID"})


def test_a_wrong_environment_ends_the_program_with_2(monkeypatch, capsys):
    """A sentence, no traceback."""
    monkeypatch.delenv("POD_ID", raising=False)

    assert main() == 2
    assert "POD_ID must be set" in capsys.readouterr().err


def test_kopf_keeps_nothing_on_objects_and_needs_no_further_rights():
    """No finalizer or annotation under anybody else's name, no events, no scanning of CRDs and namespaces."""
    settings = settings_for(from_environment(GOOD), priority=7)

    assert settings.persistence.finalizer.startswith("paceline.dev/")
    assert (settings.scanning.disabled, settings.posting.enabled) == (True, False)
    assert (settings.peering.priority, settings.peering.mandatory) == (7, True)
    assert isinstance(settings.watching.server_timeout, int)


@pytest.mark.parametrize(
    "text, number",
    [("1", 1), ("500m", Decimal("0.5")), ("2Gi", 2 << 30), ("1.5k", 1500), ("", None), ("x", None), ("1Q", None)],
)
def test_quantities_are_numbers(text, number):
    """Decimal and binary units; other text is no quantity."""
    assert parse_quantity(text) == number


@given(st.integers(0, 10**6))
def test_two_writings_of_one_quantity_are_the_same(number):
    """The server's rewriting is no edit."""
    assert same_quantity(str(number), f"{number * 1000}m")
    assert same_quantity(f"{number}Gi", f"{number * 1024}Mi")
    assert not same_quantity(f"{number}Gi", f"{number}G") or number == 0


@pytest.mark.parametrize(
    "asked, kept, other",
    [("0.0001", "1m", "2m"), ("1.23456789Gi", "1325607178061m", "1325607178060m"), ("2.0004", "2001m", "2")],
)
def test_the_servers_rounding_is_no_edit(asked, kept, other):
    """It keeps thousandths, rounded up; else such a Deployment would be applied at every look."""
    assert same_quantity(kept, asked)
    assert not same_quantity(other, asked)


@pytest.mark.parametrize(
    "change, type_",
    [
        (Change("Compatible", "False", "VocabMismatch", "x" * 5000), "Warning"),
        (Change("Progressing", "False", "Settled", ""), "Normal"),
        (Change("WeightsCached", "False", "FetchFailed", ""), "Warning"),
        (Change("Available", "False", "ImagePullBackOff", ""), "Warning"),
        (Change("Available", "False", "FailedCreate", ""), "Warning"),
        (Change("Available", "False", "Loading", ""), "Normal"),
        (Change("Ready", "True", "Serving", ""), "Normal"),
    ],
)
def test_event_of_a_change(change, type_):
    """Only what somebody should look at is a warning; Kubernetes bounds the message and wants a reason."""
    found = event(make_resource(), change, "operator-a", NOW)

    assert (found["type"], found["reason"]) == (type_, change.reason)
    assert len(found["message"]) <= MAX_MESSAGE
    assert found["involvedObject"]["uid"] == "uid-1"
