"""Stop strings: which are tokens, where others end a stream of text, and how much may be shown before that is known.

`TextStream` uses it, and who makes requests. A stream knows no tokens: `Detokenizer` makes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from paceline_runtime.params import SamplingParams


def with_token_stops(params: SamplingParams, special_id: Callable[[str], int | None]) -> SamplingParams:
    """Parameters that also stop at the special tokens among the stop strings, which no text shows.

    They stay strings, too: a model may spell one out, letter by letter.
    """
    found = (special_id(stop) for stop in params.stop)
    ids = [token for token in dict.fromkeys(found) if token is not None and token not in params.stop_token_ids]
    return msgspec.structs.replace(params, stop_token_ids=(*params.stop_token_ids, *ids)) if ids else params


class StopScanner:
    """Finds the first stop string of a stream, in whatever pieces the stream comes.

    First is the one that is complete first; of several that end at the same character, the longest. `stop` is that
    string once found; from then on nothing more is released.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stop: str | None = None

    def push(self, text: str) -> str:
        """Take more text; the part that is safe to show: it is before any stop string and cannot begin one."""
        if self.stop is not None:
            return ""
        text = self._held + text
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.stop = min(ends)
            self._held = ""
            return text[:start]
        num_held = max((_num_begun(text, stop) for stop in self._stops), default=0)
        released = len(text) - num_held
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """The stream is over: what was held back because it might have begun a stop string."""
        held, self._held = self._held, ""
        return held


def _num_begun(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
