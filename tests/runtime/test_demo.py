"""The demo as a newcomer sees it: SmolLM2 loaded from its GGUF, served, asked twice, stopped."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_runtime import cli
from paceline_runtime.demo import MAX_ANSWER_TOKENS


def test_the_demo_shows_a_model_answering() -> None:
    """Progress, the address, a line to try, both answers and their numbers; nothing is left running."""
    command = [sys.executable, "-m", "paceline_runtime", "demo", "--max-tokens", "40"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    said = result.stdout

    assert result.returncode == 0, result.stderr
    assert "100%  ready after" in said
    assert re.search(r"curl http://127.0.0.1:\d+/v1/chat/completions -d", said)
    assert "The river runs through the valley, past the old mill" in said
    assert "The capital of France is Paris." in said
    speeds = re.findall(r"(\d+) tokens, ([\d.]+) tokens/s.*?([\d.]+) tokens per step", said)
    assert len(speeds) == 2
    assert float(speeds[0][2]) > 1.5


@pytest.mark.parametrize("number", [0, MAX_ANSWER_TOKENS + 1])
def test_an_answer_that_cannot_be_is_refused_at_once(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Not by the server, after loading."""
    assert cli.main(["demo", "--max-tokens", str(number)]) == cli.EXIT_USAGE
    assert "--max-tokens must be between 1 and" in capsys.readouterr().err


def test_a_terminated_demo_takes_its_server_along() -> None:
    """As an interrupted one does."""
    command = [sys.executable, "-m", "paceline_runtime", "demo", "--max-tokens", str(MAX_ANSWER_TOKENS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        # What is asked is said once the server is ready, and the longest answer takes a while.
        while not demo.stdout.readline().startswith("[streamed]"):
            assert demo.poll() is None
        (server,) = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        demo.terminate()
        status, is_left = demo.wait(), Path(f"/proc/{server}").exists()
        if is_left:
            os.kill(int(server), signal.SIGKILL)

    assert not is_left
    assert status == cli.EXIT_INTERRUPTED
