"""The life of a server: loading, serving, draining, dying. Two real processes each, with a scripted engine."""

import os
import select
import signal
import tempfile
from pathlib import Path

import httpx
import pytest
from served import TIMEOUT_S, served

from paceline_runtime.config import EngineConfig
from paceline_runtime.errors import ConfigError
from paceline_runtime.server.link.engine_process import EngineProcess

COMPLETIONS = "/v1/completions"
DEATHS = [("crash", "scripted crash"), ("die", "ended with status 7")]


def _body(prompt: str, **fields: object) -> dict[str, object]:
    return {"model": "fake", "prompt": prompt, "max_tokens": 20, **fields}


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Something that holds the engine up until the test opens it for writing."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_the_port_is_open_while_the_model_loads(fifo: Path) -> None:
    """Probes and clients learn how far it is; once loaded, requests are answered."""
    with served("build_slow_engine", model=str(fifo)) as server, httpx.Client(base_url=server.url) as http:
        server.until("50%")
        readyz = http.get("/readyz")
        refused = http.post(COMPLETIONS, json=_body("hi"))

        assert (readyz.status_code, readyz.json()) == (503, {"status": "loading", "phase": "weights", "fraction": 0.5})
        assert http.get("/livez").status_code == 200
        assert "paceline_loading_fraction 0.5" in http.get("/metrics").text
        assert refused.status_code == 503
        assert refused.headers["retry-after"].isdigit()
        assert "50%" in refused.json()["error"]["message"]

        fifo.write_text("")
        server.until("ready: fake")

        assert http.get("/readyz").json()["status"] == "ready"
        assert "paceline_loading_fraction 1.0" in http.get("/metrics").text
        assert http.post(COMPLETIONS, json=_body("hi")).status_code == 200


def test_a_signal_while_loading_ends_at_once(fifo: Path) -> None:
    """Nobody waits for a model that is not wanted any more."""
    with served("build_slow_engine", model=str(fifo)) as server:
        server.until("50%")
        server.terminate()

        assert server.ended()[0] == 0


def test_draining_finishes_what_runs_and_refuses_what_comes(fifo: Path) -> None:
    """SIGTERM: the probe turns, new requests are sent away, the stream comes to its end, the status is 0."""
    with served() as server, httpx.Client(base_url=server.url, timeout=60) as http:
        server.until("ready")
        with http.stream("POST", COMPLETIONS, json=_body(f"gate:{fifo}", stream=True)) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            server.terminate()
            with httpx.Client(base_url=server.url) as other:
                while (readyz := other.get("/readyz")).status_code == 200:
                    pass
                refused = other.post(COMPLETIONS, json=_body("hi"))
            fifo.write_text("")
            rest = [line for line in lines if line]

        assert readyz.json() == {"status": "draining"}
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert first.startswith("data: ")
        assert rest[-1] == "data: [DONE]"
        status, said = server.ended()
        assert status == 0
        assert "Fatal" not in said


def test_a_drain_that_takes_too_long_is_cut_off() -> None:
    """The client is told, and the server ends all the same."""
    with served("build_fake_engine", "--drain-timeout-s", "0.1") as server:
        server.until("ready")
        with (
            httpx.Client(base_url=server.url, timeout=60) as http,
            http.stream("POST", COMPLETIONS, json=_body("linger", stream=True)) as stream,
        ):
            lines = stream.iter_lines()
            next(lines)
            server.terminate()
            rest = [line for line in lines if line]

        assert "shutting down" in rest[-1]
        assert server.ended()[0] == 0


def test_a_second_signal_ends_a_drain_at_once() -> None:
    """Ctrl-C twice: nobody waits for the rest of the drain's ten minutes."""
    with (
        served("build_fake_engine", "--drain-timeout-s", "600") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        server.until("ready")
        with http.stream("POST", COMPLETIONS, json=_body("linger", stream=True)) as stream:
            lines = stream.iter_lines()  # kept: letting go of it would close the stream
            next(lines)
            server.terminate()
            with httpx.Client(base_url=server.url) as other:
                while other.get("/readyz").status_code == 200:
                    pass
            server.terminate()

            assert server.process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(("prompt", "reason"), DEATHS)
def test_when_the_engine_dies_its_request_is_answered_and_the_server_ends(prompt: str, reason: str) -> None:
    """By an exception or without a word; the exit status is not 0, so that the pod is restarted."""
    with served() as server, httpx.Client(base_url=server.url, timeout=60) as http:
        server.until("ready")
        answer = http.post(COMPLETIONS, json=_body(prompt))
        status, said = server.ended()

    assert answer.status_code == 503
    assert reason in answer.json()["error"]["message"]
    assert status == 1
    assert reason in said


@pytest.mark.parametrize(("prompt", "reason"), DEATHS)
def test_when_the_engine_dies_streams_end_with_an_error(fifo: Path, prompt: str, reason: str) -> None:
    """An event of its own, and no `[DONE]`: nobody takes half an answer for a whole one."""
    with served() as server, httpx.Client(base_url=server.url, timeout=60) as http:
        server.until("ready")
        with http.stream("POST", COMPLETIONS, json=_body(f"gate:{fifo} {prompt}", stream=True)) as stream:
            lines = stream.iter_lines()
            first = next(lines)
            fifo.write_text("")
            rest = [line for line in lines if line]
        status, _ = server.ended()

    assert '"text":"G"' in first
    assert reason in rest[-1]
    assert "data: [DONE]" not in rest
    assert status == 1


def test_a_killed_engine_is_noticed_without_any_request() -> None:
    """The out-of-memory killer leaves no message."""
    with served() as server:
        server.until("ready")
        os.kill(server.engine_pid(), signal.SIGKILL)
        status, said = server.ended()

    assert status == 1
    assert "ended with status -9" in said


def test_a_killed_server_takes_its_engine_along() -> None:
    """No process holds a GPU for nobody."""
    with served() as server:
        server.until("ready")
        engine = os.pidfd_open(server.engine_pid())
        server.process.kill()
        readable, _, _ = select.select([engine], [], [], 60)
        os.close(engine)

    assert readable


def test_a_model_that_cannot_be_loaded_is_explained() -> None:
    """The reason, without a traceback, and a status that is not 0."""
    with served("build_broken_engine") as server:
        status, said = server.ended()

    assert status == 1
    assert "tensor blk.0.attn_q.weight is missing" in said
    assert "Traceback" not in said


def test_a_taken_port_is_explained() -> None:
    """Before anything is loaded."""
    with served() as server:
        server.until("ready")
        port = server.url.rpartition(":")[2]
        message = f"cannot listen on --host 127.0.0.1 --port {port}"
        with pytest.raises(AssertionError, match=message), served("build_fake_engine", "--port", port):
            pass


async def test_a_temporary_folder_with_too_long_a_path_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket to the engine would be in it."""
    folder = tmp_path / ("deep" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    process = EngineProcess(EngineConfig(model_path="fake"))

    with pytest.raises(ConfigError, match="set TMPDIR"):
        await process.start()
    await process.stop(0)
