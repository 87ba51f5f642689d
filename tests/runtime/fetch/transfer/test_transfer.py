"""A folder before, during and after a transfer: versions are never mixed, and space is known beforehand."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import Answer, HubSite, serve

WEIGHTS = bytes(range(256)) * 8192
MODEL = {"config.json": b"{}", "model.safetensors": WEIGHTS}


def _partials(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial"))


def test_a_refresh_that_fails_leaves_the_old_version_whole(tmp_path: Path) -> None:
    """The pods that read it, and the next start without network, have their model."""
    with serve(HubSite("org/model", MODEL)) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        fetch_now("hf://org/model", tmp_path, environment=environment)
        hub.repo_files["config.json"] = b'{"new": 1}'
        hub.faults[hub.path("config.json")] = [Answer(404)]
        failed = fetch_now("hf://org/model", tmp_path, "--refresh", environment=environment)
        num_seen = len(hub.seen)
        again = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert (failed.code, again.code) == (3, 0), failed.error + again.error
    assert len(hub.seen) == num_seen
    assert {name: files_in(tmp_path)[name] for name in MODEL} == MODEL


def test_what_an_interrupted_replacement_left_of_the_old_version_goes_with_the_next_fetch(tmp_path: Path) -> None:
    """Old shards beside a new whole file would be loaded with it."""
    old = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"1", "model-00002-of-00002.safetensors": b"2"}
    with serve(HubSite("org/model", {**old, **MODEL})) as hub:
        environment = {"HF_ENDPOINT": hub.url}
        hub.named = list(old)
        fetch_now("hf://org/model", tmp_path, environment=environment)
        hub.named = list(MODEL)
        (tmp_path / "model.safetensors").mkdir()  # nothing can be renamed to that
        failed = fetch_now("hf://org/model", tmp_path, "--refresh", environment=environment)
        (tmp_path / "model.safetensors").rmdir()
        result = fetch_now("hf://org/model", tmp_path, environment=environment)

    assert (failed.code, result.code) == (5, 0), failed.error + result.error
    assert files_in(tmp_path) == MODEL


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has both numbers."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=65 << 20))
    with serve(HubSite("org/model", MODEL)) as hub:
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 5
    assert "2 MiB are still to come and 65 MiB are free" in result.error
    assert hub.ranges(hub.path("model.safetensors")) == []


def test_a_disk_that_fills_up_on_the_way_keeps_what_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5, with the remedy; the next call resumes."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serve(HubSite("org/model", MODEL)) as hub, monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        result = fetch_now("hf://org/model", tmp_path, environment={"HF_ENDPOINT": hub.url})

    assert result.code == 5
    assert "no space left; give the volume more" in result.error
    assert _partials(tmp_path)
