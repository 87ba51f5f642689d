"""The ids of a text that must not have too many, with no more work than it takes to see that it has.

The server drives one for each text, a moment's work at a time, and `LLM` does. It refuses to know what the limit is for.
"""

from __future__ import annotations

from paceline_runtime.text.chat import Encoder

SHORT_CHARS = 1 << 14
"""Texts up to here are tokenized whatever their bytes say: the exact count is worth more to the reader than the work."""


class TooManyTokensError(ValueError):
    """A text of `num_tokens`; it has at least so many where `is_all` is False."""

    def __init__(self, num_tokens: int, *, is_all: bool) -> None:
        super().__init__(f"the text has {'' if is_all else 'at least '}{num_tokens} tokens")
        self.num_tokens, self.is_all = num_tokens, is_all


class BoundedEncoding:
    """`ids` of a text are complete once it `is_done`. TooManyTokensError comes as soon as more than `most` are certain."""

    def __init__(self, encoder: Encoder, text: str, most: int, *, add_special_tokens: bool = True) -> None:
        check_bytes(encoder, text, most)
        self._encoding, self._most = encoder.gradually(text, add_special_tokens), most

    @property
    def is_done(self) -> bool:
        """Whether the ids are all there."""
        return self._encoding.is_done

    @property
    def ids(self) -> list[int]:
        """The ids of the text, as far as they are known."""
        return self._encoding.ids

    def advance(self) -> None:
        """A moment's work, or all of it where the tokenizer cannot take a text in pieces."""
        self._encoding.advance()
        if len(self.ids) > self._most:
            raise TooManyTokensError(len(self.ids), is_all=self.is_done)


def check_bytes(encoder: Encoder, text: str, most: int) -> None:
    """TooManyTokensError if the text would have more than `most` tokens even if it were made of the longest alone."""
    if len(text) > SHORT_CHARS and (fewest := encoder.fewest_tokens(text)) > most:
        raise TooManyTokensError(fewest, is_all=False)
