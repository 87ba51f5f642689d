"""The command: signals, output, concurrency, one fetch at a time in a folder."""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from fetch_runner import fetch_now, files_in
from fetch_servers import Answer, HubSite, Site, serve

from paceline_runtime.fetch import add_arguments, run

MAIN = """
import argparse, sys
from paceline_runtime.fetch import add_arguments, run
parser = argparse.ArgumentParser()
add_arguments(parser)
sys.exit(run(parser.parse_args()))
"""
MODEL = {f"model-0000{n}-of-00004.safetensors": bytes([n]) * 100_000 for n in range(1, 5)} | {"config.json": b"{}"}


def _run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(argv))


def test_sigterm_ends_a_waiting_fetch_at_once(tmp_path: Path) -> None:
    """A pod that is deleted while the hub says 429 does not sit out its grace period."""
    asked = threading.Event()
    with serve(Site()) as site:
        busy = Answer(429, b"", {"Retry-After": "600"}, then=asked.set)
        site.faults["/api/models/org/model/revision/main"] = [busy]
        environment = os.environ | {"HF_ENDPOINT": site.url}
        command = [sys.executable, "-c", MAIN, "hf://org/model", str(tmp_path), "--progress", "none"]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        assert asked.wait(60)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)

    assert process.returncode == 130
    assert error == "paceline fetch: interrupted while waiting to retry\n"


def test_sigterm_ends_a_fetch_that_waits_for_another(tmp_path: Path) -> None:
    """The other may take hours; a pod that is deleted meanwhile does not sit out its grace period."""
    with (tmp_path / ".paceline-fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-c", MAIN, "hf://org/model", str(tmp_path), "--progress", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert "waiting" in process.stdout.readline()
                process.send_signal(signal.SIGTERM)
                _, error = process.communicate(timeout=60)
            finally:
                process.kill()

    assert process.returncode == 130
    assert error == "paceline fetch: interrupted while waiting for another fetch\n"


def test_json_progress_tells_plan_files_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One JSON object a line, for log collectors; the files' names appear when they are verified."""
    with serve(HubSite("org/model", MODEL)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        code = _run("hf://org/model", str(tmp_path), "--progress", "json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert code == 0
    assert events[0] == {"event": "plan", "num_files": 5, "total_bytes": 400_002, "revision": HubSite.commit}
    assert {event["path"] for event in events if event["event"] == "file"} == set(MODEL)
    assert events[-1]["event"] == "done"


def test_human_progress_and_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readable lines when asked for, none when asked for none."""
    with serve(HubSite("org/model", MODEL)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        human = _run("hf://org/model", str(tmp_path / "a"), "--progress", "human"), capsys.readouterr().out
        silent = _run("hf://org/model", str(tmp_path / "b"), "--progress", "none"), capsys.readouterr().out

    assert human[0] == silent[0] == 0
    assert human[1].startswith("fetch: 5 files, 0.4 MiB, revision c0ffee")
    assert silent[1] == ""


def test_a_token_appears_in_no_output_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even a server that echoes it in a redirect's address and in its answers."""
    token = "hf_token-that-must-not-show"
    monkeypatch.setenv("HF_TOKEN", token)
    answers = [
        Answer(401, token.encode()),
        Answer(302, b"", {"Location": f"/{token}?token={token}"}),
        Answer(200, token.encode()),
        Answer(500, token.encode()),
    ]
    with serve(Site()) as site:
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        codes = []
        for answer in answers:
            site.faults["/api/models/org/model/revision/main"] = [answer]
            codes.append(_run("hf://org/model", str(tmp_path), "--max-retries", "0"))
    shown = capfd.readouterr()

    assert codes == [3, 3, 3, 6]
    assert any(seen.headers.get("authorization") == f"Bearer {token}" for seen in site.seen)
    assert token not in shown.out + shown.err
    assert shown.err.count("paceline fetch: ") == 4


def test_files_are_fetched_side_by_side_and_no_more_than_allowed(tmp_path: Path) -> None:
    """Two at a time: two requests meet at a barrier, and there are never three."""
    meeting, lock, counts = threading.Barrier(2), threading.Lock(), [0, 0]

    def enter(answer: Answer) -> Answer:
        with lock:
            counts[0] += 1
            counts[1] = max(counts)
        return replace(answer, body=answer.body, then=leave)

    def leave() -> None:
        meeting.wait(timeout=60)
        with lock:
            counts[0] -= 1

    weights = {name: data for name, data in MODEL.items() if name != "config.json"}
    with serve(HubSite("org/model", weights)) as hub:
        for name in weights:
            # The body is held back by half until both are there, so that neither request can end alone.
            hub.faults[hub.path(name)] = [lambda answer: replace(enter(answer), cut_after=len(answer.body) // 2)]
        result = fetch_now("hf://org/model", tmp_path, "--max-concurrency", "2", environment={"HF_ENDPOINT": hub.url})

    assert result.code == 0, result.error
    assert files_in(tmp_path) == weights
    assert counts[1] == 2


def test_a_second_fetch_of_the_same_folder_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    """Eight pods and one claim: one download."""
    outcomes = []
    with serve(HubSite("org/model", MODEL)) as hub, (tmp_path / ".paceline-fetch.lock").open("w") as lock:
        environment = {"HF_ENDPOINT": hub.url}
        fcntl.flock(lock, fcntl.LOCK_EX)
        threads = [
            threading.Thread(target=lambda: outcomes.append(fetch_now("hf://org/model", tmp_path, environment=environment)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        asked_while_locked = len(hub.seen)
        fcntl.flock(lock, fcntl.LOCK_UN)
        for thread in threads:
            thread.join()

    assert asked_while_locked == 0
    assert [outcome.code for outcome in outcomes] == [0, 0, 0]
    assert sum('"event": "done"' in outcome.out for outcome in outcomes) == 1
    assert sum('"event": "complete"' in outcome.out for outcome in outcomes) == 2
    assert len(hub.seen) == 1 + len(MODEL)
