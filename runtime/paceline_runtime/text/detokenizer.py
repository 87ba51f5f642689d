"""Text of a token stream, token by token, never with a piece of a character. Used by `TextStream`.

Knows nothing of stop strings or requests; any tokenizer's `decode` will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A character has at most 4 bytes, so at most 3 of them can be waiting for the rest; decoders show each wait as U+FFFD.
MAX_HELD_CHARS = 3
# Tokens decoded again for context: decoders merge bytes and strip spaces across neighbours, never as far as this.
NUM_CONTEXT_TOKENS = 8


class Decoder(Protocol):
    """The one thing needed of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, with U+FFFD where bytes form no character."""


class Detokenizer:
    """Text as tokens arrive. The pieces joined, `flush` included, are the text that `decode` gives for all ids at once.

    That holds for byte-level vocabularies. SentencePiece byte fallback decodes whole runs of invalid bytes differently
    from their parts; there only characters, not U+FFFD counts, are equal. With `prompt_ids` the text continues the
    prompt's: a leading space that `decode` would strip from a first token stays.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._context = list(prompt_ids[-NUM_CONTEXT_TOKENS:])
        self._num_held = _num_incomplete(decode(self._context)) if self._context else 0

    def push(self, token_id: int) -> str:
        """The text that `token_id` completed: often "", at times more than one character."""
        before = self._decode(self._context) if self._context else ""
        window = [*self._context, token_id]
        after = self._decode(window)
        # Control tokens have no text; many of them must not push what is held out of the context.
        if self._num_held and after == before and not self._decode([token_id]):
            return ""
        text = after[len(before) - self._num_held :]
        self._context = window[-NUM_CONTEXT_TOKENS:]
        self._num_held = _num_incomplete(text)
        return text[: len(text) - self._num_held]

    def flush(self) -> str:
        """What was held back for a character that never came, as U+FFFD."""
        text = REPLACEMENT * self._num_held
        self._num_held = 0
        return text


def _num_incomplete(text: str) -> int:
    """How many characters at the end of `text` later bytes may still change."""
    return min(len(text) - len(text.rstrip(REPLACEMENT)), MAX_HELD_CHARS)
