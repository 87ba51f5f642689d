"""A server process for tests of its life: started, read line by line, signalled, waited for; never left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SUPPORT = Path(__file__).parent
TIMEOUT_S = 60


class Served:
    """A running server and the address it said it listens on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.url = re.search(r"http://\S+:\d+", self.until("listening on"))[0]

    def until(self, text: str) -> str:
        """Read what it says up to a line that holds `text`."""
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"never said {text!r}, but: {''.join(self.lines)}")

    def terminate(self) -> None:
        """As Kubernetes does."""
        self.process.send_signal(signal.SIGTERM)

    def engine_pid(self) -> int:
        """The one child of the server."""
        (pid,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pid)

    def ended(self) -> tuple[int, str]:
        """The exit status and all that it said."""
        rest = self.process.stderr.read()
        return self.process.wait(TIMEOUT_S), "".join(self.lines) + rest


@contextlib.contextmanager
def served(factory: str = "build_fake_engine", *flags: str, model: str = "fake") -> Iterator[Served]:
    """A server with the engine that `fake_engine.FACTORY` builds."""
    with _started([str(SUPPORT / "fake_serve.py"), factory, "--model", model, *flags]) as server:
        yield server


@contextlib.contextmanager
def served_model(model: Path, *flags: str) -> Iterator[Served]:
    """`paceline serve` with the real engine, ready."""
    with _started(["-m", "paceline_runtime", "serve", "--port", "0", "--model", str(model), *flags]) as server:
        server.until("ready: ")
        yield server


@contextlib.contextmanager
def _started(arguments: list[str]) -> Iterator[Served]:
    # A killed server leaves its socket's folder behind; here that is cleaned up with the rest.
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": folder}
        with subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True, env=environment) as process:
            try:
                yield Served(process)
            finally:
                process.kill()
