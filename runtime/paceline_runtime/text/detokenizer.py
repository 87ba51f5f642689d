"""Text of a token stream, token by token, never with a piece of a character. `TextStream` uses it.

It knows nothing of stop strings or requests; any tokenizer's `decode` will do.
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


def token_text(decode: Decode, token_id: int) -> str:
    """What a token adds to a text. Alone it would lack the space that decoders strip from, or add to, all but the first."""
    return decode([token_id, token_id])[len(decode([token_id])) :]


class Detokenizer:
    """Text as tokens arrive. The pieces joined, `flush` included, are the text that `decode` gives for all ids at once.

    That holds for byte-level vocabularies. SentencePiece byte fallback decodes a whole run of byte tokens as U+FFFD while
    its last character is incomplete, and for good if it stays so: there the characters before the flaw are kept instead.
    With `prompt_ids` the text continues the prompt's: a leading space that `decode` would strip from a first token stays.
    """

    def __init__(self, decode: Decode, prompt_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._text = self._shown = ""
        self._num_pending = 0
        recent = prompt_ids[-NUM_CONTEXT_TOKENS - 2 * MAX_HELD_CHARS :]
        num_whole = self._num_whole(recent)
        self._settle(recent[:num_whole], 0)
        for token_id in recent[num_whole:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The text that `token_id` completed: often "", at times more than one character."""
        window, shown = [*self._context, token_id], self._shown
        after = self._decode(window)
        # Control tokens have no text; many of them must not push what is held out of the context.
        if self._text != shown and after == self._text and not self._decode([token_id]):
            return ""
        if not after.startswith(shown):
            self._num_pending += 1
            if self._num_pending <= MAX_HELD_CHARS and after.endswith(REPLACEMENT):
                self._context, self._text = window, after
                return ""
            window, shown = window[-self._num_pending :], ""
            after = self._decode(window)
        self._num_pending = 0
        text = after[len(shown) :]
        num_held = _num_incomplete(text)
        self._settle(window, num_held)
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """What was held back for a character that never came, as U+FFFD."""
        pending = self._context[len(self._context) - self._num_pending :]
        text = self._decode(pending) if pending else self._text[len(self._shown) :]
        self._shown, self._num_pending = self._text, 0
        return text

    def _num_whole(self, ids: Sequence[int]) -> int:
        """How many of the ids come before a character that is not complete."""
        least = max(len(ids) - MAX_HELD_CHARS, 0)
        return next((n for n in range(len(ids), least, -1) if not self._tail(ids[:n])[1].endswith(REPLACEMENT)), least)

    def _settle(self, ids: Sequence[int], num_held: int) -> None:
        """Go on after `ids`, whose text is shown but for its end."""
        self._context, self._text = self._tail(ids)
        self._shown = self._text[: max(0, len(self._text) - num_held)]

    def _tail(self, ids: Sequence[int]) -> tuple[list[int], str]:
        """The last few ids and their text. They begin with a whole character: byte fallback makes nothing of a part."""
        tail = list(ids[-NUM_CONTEXT_TOKENS:])
        if REPLACEMENT not in (text := self._decode(tail)):
            return tail, text
        tails = [list(ids[-NUM_CONTEXT_TOKENS - more :]) for more in range(MAX_HELD_CHARS + 1)]
        return min(((tail, self._decode(tail)) for tail in tails), key=lambda found: found[1].count(REPLACEMENT))


def _num_incomplete(text: str) -> int:
    """How many characters at the end of `text` later bytes may still change."""
    return min(len(text) - len(text.rstrip(REPLACEMENT)), MAX_HELD_CHARS)
