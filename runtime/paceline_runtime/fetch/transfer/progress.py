"""Lines about how far a fetch is, for people or for log collectors. All download threads call it."""

import json
import threading
import time
from collections.abc import Callable
from typing import TextIO

_MIB = 1 << 20


class Progress:
    """Writes at most one progress line per `interval_s`; events that happen once are always written."""

    def __init__(
        self,
        out: TextIO,
        style: str,
        *,
        interval_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._style = out, style
        self._interval_s, self._clock = interval_s, clock
        self._lock = threading.Lock()
        self._last = clock()
        self._num_bytes = self._last_bytes = self._total_bytes = 0

    def plan(self, num_files: int, total_bytes: int, revision: str) -> None:
        """What is about to be fetched."""
        self._total_bytes = total_bytes
        text = f"{num_files} files, {total_bytes / _MIB:.1f} MiB" + (f", revision {revision}" if revision else "")
        self._write("plan", text, num_files=num_files, total_bytes=total_bytes, revision=revision)

    def add(self, num_bytes: int) -> None:
        """Bytes that arrived or were found (negative: thrown away)."""
        with self._lock:
            self._num_bytes += num_bytes
            now = self._clock()
            if now - self._last < self._interval_s:
                return
            # Since the line before: what an earlier run left would make an average boast.
            rate = max(0.0, (self._num_bytes - self._last_bytes) / max(now - self._last, 1e-9))
            self._last, self._last_bytes = now, self._num_bytes
            share = f" of {self._total_bytes / _MIB:.1f}" if self._total_bytes else ""
            text = f"{self._num_bytes / _MIB:.1f}{share} MiB, {rate / _MIB:.1f} MiB/s"
            counts = {"num_bytes": self._num_bytes, "total_bytes": self._total_bytes, "bytes_per_s": round(rate)}
        self._write("progress", text, **counts)

    def file(self, path: str) -> None:
        """One file is complete and verified."""
        self._write("file", f"{path} complete", path=path)

    def note(self, event: str, text: str) -> None:
        """Anything else that happens once."""
        self._write(event, text, message=text)

    def _write(self, event: str, text: str, **fields: object) -> None:
        if self._style == "none":
            return
        line = json.dumps({"event": event, **fields}) if self._style == "json" else f"fetch: {text}"
        with self._lock:
            print(line, file=self._out, flush=True)
