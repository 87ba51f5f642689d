"""The operator's environment, kopf's settings and the command line."""

import pytest

from paceline_operator.config import from_environment
from paceline_operator.errors import ConfigError
from paceline_operator.main import main, settings_for

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
    settings = settings_for(from_environment(GOOD))

    assert settings.persistence.finalizer.startswith("paceline.dev/")
    assert (settings.scanning.disabled, settings.posting.enabled) == (True, False)
    assert settings.peering.standalone
    assert isinstance(settings.watching.server_timeout, int)
