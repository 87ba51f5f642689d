"""The demo as a newcomer sees it: SmolLM2 loaded from its GGUF, served, asked twice, stopped."""

import re
import subprocess
import sys


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
