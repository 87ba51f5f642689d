"""The ids of a long text a window at a time: exactly those of the whole text, in memory and moments that do not grow with it.

`Tokenizer.gradually` makes one; whoever may want to stop in the middle drives it. It relies on the rules of `backend_facts`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Protocol

WINDOW_CHARS = 1 << 15
"""About 20 ms of work and 5 MB."""
# What \s is to the library, which is not what it is to Python.
_BLANKS = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_BREAKS = re.compile("[\r\n]+")
_JAMO = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff]")


class Encoded(Protocol):
    """What this module needs of the library's encoding: each token's id, its word and its place in the text."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def word_ids(self) -> Sequence[int | None]: ...
    @property
    def offsets(self) -> Sequence[tuple[int, int]]: ...


class GradualEncoding:
    """`ids` grow with every `advance` until `is_done`; before that they may lack the text's last tokens.

    A window is cut where a word begins: what the splitting rules make of a text from there on does not depend on what was
    before. Words longer than a window are cut between two tokens of theirs, and the cut is kept if the next window, which
    begins there, begins with the same token. That is exact: byte pairs are merged the same way wherever their neighbours
    are the same, so tokens are a word's encoding when each two that follow each other are the encoding of their text.
    `first` and `last` go around it all; `silent` bytes have no token; without a `margin` nothing is cut (`BackendFacts`).
    """

    def __init__(
        self,
        encode: Callable[[str], Encoded],
        text: str,
        *,
        margin: int | None,
        silent: bytes = b"",
        first: Sequence[int] = (),
        last: Sequence[int] = (),
        window_chars: int = WINDOW_CHARS,
    ) -> None:
        self.ids = [*first]
        self.is_done = False
        self._first, self._last, self._silent = first, last, silent
        self._encode, self._text, self._margin, self._window_chars = encode, text, margin or 0, window_chars
        self._start, self._size = 0, len(text) if margin is None else window_chars
        self._limit = len(text)  # no window goes beyond it: the text's end, or that of a word it would not see
        self._expected: tuple[int, int] | None = None
        self._blanks, self._last_break = range(0), 0

    def advance(self) -> None:
        """Encode one window more. That is a moment's work, except for a text with no place to cut, which is encoded as one."""
        start, end = self._start, min(self._start + self._size, self._limit)
        window = self._encode(self._text[start:end] + self._break_to_come(end))
        if self._expected is not None and self._expected != (window.ids[0], start + window.offsets[0][1]):
            self._widen(end)
        elif end == self._limit:
            self._take(window, len(window.ids), end)
            if end == len(self._text):
                self.ids += self._last
                self.is_done = True
        elif (cut := self._word_start(window, end)) is not None:
            self._take(window, cut, start + window.offsets[cut][0])
        elif not self._has_silent(start, end) and (cut := self._middle_token(window)) is not None:
            self._limit = self._word_limit(window, cut)
            self._take(window, cut, start + window.offsets[cut][0], (window.ids[cut], start + window.offsets[cut][1]))
        else:
            self._widen(end)

    def _take(self, window: Encoded, num_tokens: int, next_start: int, expected: tuple[int, int] | None = None) -> None:
        self.ids += window.ids[:num_tokens]
        self._start, self._size, self._expected = next_start, self._window_chars, expected
        self._limit = self._limit if expected else len(self._text)

    def _widen(self, end: int) -> None:
        """Try a window twice as long. A window that ends where it must and is of no use shows that an earlier cut was wrong."""
        self._size *= 2
        if end == self._limit:
            self.ids, self._start, self._size, self._expected = [*self._first], 0, len(self._text), None
            self._limit = len(self._text)

    def _word_start(self, window: Encoded, end: int) -> int | None:
        """The last token of the window, but for the first, that begins a word, however the text goes on."""
        words, offsets = window.word_ids, window.offsets
        for index in range(len(words) - 1, 0, -1):
            at = self._start + offsets[index][0]
            if words[index] != words[index - 1] and at <= end - self._margin and self._may_begin(at):
                return index
        return None

    def _middle_token(self, window: Encoded) -> int | None:
        """A token about the middle of the window that begins with a character inside a word, far from the word's end."""
        words, offsets, word_end = window.word_ids, window.offsets, 0
        for index in range(len(words) - 1, 0, -1):
            if index + 1 == len(words) or words[index] != words[index + 1]:
                word_end = offsets[index][1]
            at = offsets[index][0]
            is_inside = words[index] == words[index - 1] and offsets[index - 1][1] <= at <= word_end - self._margin
            if is_inside and at <= self._size // 2 and self._may_begin(self._start + at):
                return index
        return None

    def _word_limit(self, window: Encoded, cut: int) -> int:
        """Where a window that begins at a token inside a word must end.

        Breaks that belong to the signs before them end a word; blanks after them do not belong to it, which a window that
        begins with breaks would not see.
        """
        at = self._start + window.offsets[cut][0]
        first = window.word_ids.index(window.word_ids[cut])
        is_blank = _BLANKS.fullmatch(self._text, self._start + window.offsets[first][0], at)
        breaks = _BREAKS.match(self._text, at)
        return min(self._limit, breaks.end()) if breaks and not is_blank else self._limit

    def _has_silent(self, start: int, end: int) -> bool:
        """Whether there are bytes without a token: the library does not count them in the places that it tells."""
        spelled = self._text[start:end].encode()
        return len(spelled.translate(None, self._silent)) < len(spelled)

    def _may_begin(self, at: int) -> bool:
        """Whether NFC leaves the character as it is, whatever is before it: others are joined to those, or become several."""
        char = self._text[at]
        if char < "\x80":
            return True
        return not (unicodedata.category(char)[0] in "MC" or _JAMO.match(char)) and unicodedata.is_normalized("NFC", char)

    def _break_to_come(self, end: int) -> str:
        """A line break to end a window with that ends among blanks, if later ones have it: all up to it are one word."""
        if end == self._limit:
            return ""
        if end not in self._blanks:
            run = _BLANKS.match(self._text, end)
            self._blanks = range(end, run.end() if run else end)
            self._last_break = max(self._text.rfind(char, end, self._blanks.stop) for char in "\r\n")
        return "\n" if self._last_break >= end and _BLANKS.match(self._text, end - 1) else ""
