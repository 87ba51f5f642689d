"""Forward reading of a file through one small window, every step checked against the file's end. GGUF headers only."""

from __future__ import annotations

import struct
from typing import Any

from .errors import MetadataError
from .source import Source

_WINDOW_BYTES = 1 << 20
_LENGTH = struct.Struct("<Q")


class Cursor:
    """A position in a source. Memory is one window, or one string where that is longer, never a claimed size."""

    MAX_NAME_BYTES = 1 << 10
    MAX_STRING_BYTES = 1 << 24
    MAX_ARRAY_ELEMENTS = 1 << 22
    MAX_ARRAY_BYTES = 1 << 27

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0
        self._window, self._start = b"", 0

    def error(self, what: str, remedy: str = "") -> MetadataError:
        return MetadataError(self.source.name, what, remedy)

    def take(self, length: int, what: str) -> bytes:
        """The next bytes, moving past them."""
        begin = self._ensure(length, what)
        self.position += length
        return self._window[begin : begin + length]

    def skip(self, length: int, what: str) -> None:
        """Move on without reading."""
        if length > self.source.size_bytes - self.position:
            raise self._truncated(what)
        self.position += length

    def number(self, layout: struct.Struct, what: str) -> Any:
        """One number of the given layout."""
        return layout.unpack_from(self._window, self._ensure_and_pass(layout.size, what))[0]

    def count(self, what: str, element_bytes: int, maximum: int) -> int:
        """A count whose elements, at their smallest, must still fit into the file."""
        value: int = self.number(_LENGTH, what)
        room = (self.source.size_bytes - self.position) // element_bytes
        if value > min(room, maximum):
            limit = f"the rest of the file has room for {room}" if value > room else f"at most {maximum} are read"
            raise self.error(f"{what} is {value}, and {limit}", "the file is truncated or its header lies")
        return value

    def string(self, what: str, limit_bytes: int) -> str:
        """A length and that many bytes of UTF-8."""
        length: int = self.number(_LENGTH, what)
        if length > limit_bytes:
            raise self.error(f"{what} claims {length} bytes, more than the {limit_bytes} allowed")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None

    def skip_strings(self, count: int, key: str) -> None:
        """Move past an array of strings. A vocabulary has hundreds of thousands, so the loop keeps to locals."""
        what, unpack = f"array {key!r}", _LENGTH.unpack_from
        end = min(self.source.size_bytes, self.position + self.MAX_ARRAY_BYTES)
        at, window = self.position - self._start, self._window
        for _ in range(count):
            if at < 0 or at + 8 > len(window):
                self.position = self._start + at
                at, window = self._ensure(8, what), self._window
            length = unpack(window, at)[0]
            if length > self.MAX_STRING_BYTES or self._start + at + 8 + length > end:
                raise self.error(f"{what} has a string of {length} bytes", "the file is truncated or its header lies")
            at += 8 + length
        self.position = self._start + at

    def _ensure_and_pass(self, length: int, what: str) -> int:
        begin = self._ensure(length, what)
        self.position += length
        return begin

    def _ensure(self, length: int, what: str) -> int:
        """Have ``length`` bytes at the position in the window; where in it they begin."""
        begin = self.position - self._start
        if begin >= 0 and begin + length <= len(self._window):
            return begin
        left = self.source.size_bytes - self.position
        if length > left:
            raise self._truncated(what)
        self._window = self.source.read(self.position, min(left, max(length, _WINDOW_BYTES)))
        self._start = self.position
        return 0

    def _truncated(self, what: str) -> MetadataError:
        return self.error(f"ends inside {what}", "the file is truncated or its header lies")
