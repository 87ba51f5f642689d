"""The text of one answer, token by token: `Detokenizer` and `StopScanner` in a row.

The engine pushes tokens to learn whether a stop string has ended a request, the server and `LLM` to learn what to show.
All three see the same text, which continues the prompt's, so all three find the same end. It knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_runtime.text.detokenizer import Decode, Detokenizer
from paceline_runtime.text.stops import StopScanner


class TextStream:
    """Text that is safe to show. It never holds a stop string; one that begins in the prompt is none."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decode, prompt_ids)
        self._scanner = StopScanner(stops)
        self.num_chars = 0
        """Characters of the tokens so far, shown or held back; pieces of a character count once it is whole."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, once there is one."""
        return self._scanner.stop

    def push(self, token_id: int) -> str:
        """What `token_id` lets be shown: often "", at times more than its own text."""
        text = self._detokenizer.push(token_id)
        self.num_chars += len(text)
        return self._scanner.push(text)

    def flush(self) -> str:
        """All that was held back, now that nothing more comes."""
        return self._scanner.push(self._detokenizer.flush()) + self._scanner.flush()
