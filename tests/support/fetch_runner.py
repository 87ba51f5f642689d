"""Runs `paceline fetch` in the test's process, without its waits: exit code, output, and how long it would have waited."""

import argparse
import io
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline_runtime.fetch.arguments import add_arguments, parse_request
from paceline_runtime.fetch.command import fetch
from paceline_runtime.fetch.errors import FetchError
from paceline_runtime.fetch.transfer.progress import Progress


class NoWait(threading.Event):
    """An event whose waits are noted and over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout or 0.0)
        return self.is_set()


@dataclass(frozen=True)
class Outcome:
    """`code` 0 is success; `error` is the line for stderr; `out` the progress."""

    code: int
    error: str
    out: str
    waits_s: list[float]


def fetch_now(
    uri: str, folder: Path, *flags: str, environment: Mapping[str, str] | None = None, stop: NoWait | None = None
) -> Outcome:
    """`paceline fetch URI FOLDER *FLAGS` under exactly this environment."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    out, stop = io.StringIO(), stop or NoWait()
    progress = Progress(out, "json", interval_s=0.0)
    try:
        fetch(parse_request(parser.parse_args([uri, str(folder), *flags])), environment or {}, progress, stop)
    except FetchError as error:
        return Outcome(error.exit_code, str(error), out.getvalue(), stop.waits_s)
    return Outcome(0, "", out.getvalue(), stop.waits_s)


def files_in(folder: Path) -> dict[str, bytes]:
    """Everything that lies in the folder by relative path, the fetch's own bookkeeping aside."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".paceline-fetch")
    }
