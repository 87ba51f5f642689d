"""The HTTP client: retries that wait as long as asked, proxies and certificates that cannot be used."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import Answer, HubSite, serve

from paceline_runtime.fetch.client import retry_after_s

WEIGHTS = bytes(range(256)) * 8192
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}


def test_too_many_requests_waits_as_long_as_asked(tmp_path: Path) -> None:
    """Retry-After is honoured, for the listing as for the files."""
    busy = Answer(429, b"", {"Retry-After": "17"})
    with serve(HubSite("org/model", MODEL)) as hub:
        hub.faults["/api/models/org/model/revision/main"] = [busy, Answer(503)]
        hub.faults[hub.path("model.safetensors")] = [busy]
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert result.waits_s.count(17.0) == 2
    assert len(result.waits_s) == 3
    assert files_in(tmp_path) == MODEL


def test_a_server_that_stays_busy_is_given_up_with_growing_waits(tmp_path: Path) -> None:
    """As many retries as allowed, then exit code 6: worth another try later."""
    with serve(HubSite("org/model", MODEL)) as hub:
        hub.faults["/api/models/org/model/revision/main"] = [Answer(500)] * 9
        result = fetch_now("hf://org/model", tmp_path, "--max-retries", "4", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 6
    assert "500" in result.error
    assert len(result.waits_s) == 4
    assert all(0.5 * 2**n <= waited <= 2**n for n, waited in enumerate(result.waits_s))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://user:password@host:port"),
        ("HTTP_PROXY", "ftp://host"),
        ("NO_PROXY", "localhost,fd00::/8"),
        ("SSL_CERT_FILE", "/nowhere.pem"),
    ],
)
def test_proxies_and_certificates_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """Clusters set them for all pods; the HTTP library fails on them in four different ways."""
    monkeypatch.setenv(variable, value)
    result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:1"})

    assert result.code == 2
    assert variable in result.error
    assert "password@" not in result.error


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("Wed, 01 Jan 2025 00:00:30 GMT", 30.0),
        ("Tue, 31 Dec 2024 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("\N{SUPERSCRIPT TWO}", None),
        ("Wed, 01 Jan 99999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    """Seconds or a date; nonsense counts as absent."""
    assert retry_after_s(value, datetime(2025, 1, 1, tzinfo=UTC)) == seconds
