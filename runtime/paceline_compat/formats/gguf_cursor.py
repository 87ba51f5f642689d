"""Forward reading of a file through one small window, every move checked against the file's end. `gguf_header` reads so."""

from __future__ import annotations

import struct
from typing import Any

from paceline_compat.errors import MetadataError
from paceline_compat.places.source import Source

WINDOW_BYTES = 1 << 20
_GROWTH = 4
_LENGTH = struct.Struct("<Q")


class _Window:
    """The part of a source that is in memory. Reads grow, up to `_GROWTH` times: each is a round trip on a remote one."""

    def __init__(self, source: Source, num_bytes: int) -> None:
        self._source, self._num_bytes, self._most_bytes = source, num_bytes, _GROWTH * num_bytes
        self._data, self._start = b"", 0

    def around(self, position: int, length: int) -> tuple[bytes, int]:
        """Bytes that hold the `length` bytes at `position`, and where in them those begin.

        Nothing else gives the window out, and never without that place: the place in one read is a wrong one in another.
        """
        begin = position - self._start
        if begin < 0 or begin + length > len(self._data):
            wanted = min(max(length, self._num_bytes), self._source.size_bytes - position)
            self._data, self._start, begin = self._source.read(position, wanted), position, 0
            self._num_bytes = min(2 * self._num_bytes, self._most_bytes)
        return self._data, begin


class Cursor:
    """A position in a source. Memory is a window or two, or a string where that is longer, never a claimed size."""

    MAX_NAME_BYTES = 1 << 10
    MAX_STRING_BYTES = 1 << 24
    MAX_ARRAY_ELEMENTS = 1 << 22
    MAX_ARRAY_BYTES = 1 << 27

    def __init__(self, source: Source, window_bytes: int = WINDOW_BYTES) -> None:
        self.source = source
        self.position = 0
        self._window = _Window(source, window_bytes)

    def error(self, what: str, remedy: str = "") -> MetadataError:
        return MetadataError(self.source.name, what, remedy)

    def take(self, length: int, what: str) -> bytes:
        """The next bytes, moving past them."""
        data, begin = self._next(length, what)
        self.position += length
        return data[begin : begin + length]

    def skip(self, length: int, what: str) -> None:
        """Move on without reading."""
        self._check_room(length, what)
        self.position += length

    def number(self, layout: struct.Struct, what: str) -> Any:
        """One number of the given layout."""
        data, begin = self._next(layout.size, what)
        self.position += layout.size
        return layout.unpack_from(data, begin)[0]

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
        what, unpack, longest = f"array {key!r}", _LENGTH.unpack_from, self.MAX_STRING_BYTES
        end = min(self.source.size_bytes, self.position + self.MAX_ARRAY_BYTES)
        data, begin, last, room, start = b"", 0, -1, 0, self.position
        for _ in range(count):
            if begin > last:  # the next length does not lie whole in the data
                self.position = start + begin
                data, begin = self._next(8, what)
                start = self.position - begin
                last, room = len(data) - 8, end - start
            length = unpack(data, begin)[0]
            begin += 8 + length
            if length > longest or begin > room:
                raise self.error(f"{what} has a string of {length} bytes", "the file is truncated or its header lies")
        self.position = start + begin

    def _next(self, length: int, what: str) -> tuple[bytes, int]:
        """Bytes that hold the next `length` ones, and where in them those begin; the cursor stays."""
        self._check_room(length, what)
        return self._window.around(self.position, length)

    def _check_room(self, length: int, what: str) -> None:
        if length > self.source.size_bytes - self.position:
            raise self.error(f"ends inside {what}", "the file is truncated or its header lies")
