"""Lazy reader of GGUF headers: metadata, tensor table, nothing else. `facts` and the loader read with it.

It refuses to know what a model is. Every count, length and offset is held against the file's size before anything is
allocated by it; vocabularies are left where they lie and decoded on demand (the `gguf` package needs seconds and
160 MiB for one). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeVar

from paceline_compat.errors import MetadataError
from paceline_compat.formats import ggml_types
from paceline_compat.formats.gguf_cursor import WINDOW_BYTES, Cursor
from paceline_compat.formats.tensors import TensorInfo, describe_overlap
from paceline_compat.places.source import Source

Scalar = int | float | bool | str
T = TypeVar("T", bound=Scalar)

MAX_METADATA_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32
_SMALLEST_KEY_BYTES = 8 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),  # bool: any byte but 0 and 1 is refused, so it is read as a number first
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL = 7


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array left in the file: `count` elements of GGUF value type `kind` in `num_bytes` at `offset`."""

    kind: int
    count: int
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """A GGUF file's header. `tensors` keeps the file's order; offsets are absolute."""

    source: Source
    version: int
    alignment: int
    data_offset: int
    metadata: dict[str, Scalar | GgufArray] = field(repr=False)
    tensors: dict[str, TensorInfo] = field(repr=False)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """A scalar of the given kind, or `default` when the key is absent; a value of another kind is an error."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            raise MetadataError(self.source.name, f"metadata key {key!r} is {_describe(value)}, not {kind.__name__}")
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """As `get`, and an absent key is an error that names it."""
        value = self.get(key, kind)
        if value is None:
            raise MetadataError(self.source.name, f"metadata key {key!r} is missing")
        return value

    def strings(self, key: str) -> list[str]:
        """Decode an array of strings; undecodable bytes become U+FFFD, since vocabularies hold split characters."""
        array = self._array(key)
        if array.kind != _STRING:
            raise MetadataError(self.source.name, f"metadata key {key!r} is not an array of strings")
        data = self.source.read(array.offset, array.num_bytes)
        unpack, position, out = struct.Struct("<Q").unpack_from, 0, []
        for _ in range(array.count):
            start = position + 8
            position = start + unpack(data, position)[0]
            out.append(data[start:position].decode("utf-8", "replace"))
        return out

    def numbers(self, key: str) -> list[int | float | bool]:
        """Decode an array of numbers or booleans."""
        array = self._array(key)
        if array.kind not in _SCALARS:
            raise MetadataError(self.source.name, f"metadata key {key!r} is not an array of numbers")
        data = self.source.read(array.offset, array.num_bytes)
        values = list(struct.unpack(f"<{array.count}{_SCALARS[array.kind].format[1:]}", data))
        return [bool(value) for value in values] if array.kind == _BOOL else values

    def count(self, key: str) -> int:
        """Elements of an array, without decoding it."""
        return self._array(key).count

    @property
    def split_count(self) -> int:
        """Files this model was split into; 1 for a whole one."""
        return max(1, self.get("split.count", int, 1) or 1)

    def _array(self, key: str) -> GgufArray:
        value = self.metadata.get(key)
        if not isinstance(value, GgufArray):
            raise MetadataError(self.source.name, f"metadata key {key!r} is {_describe(value)}, not an array")
        return value


def read_header(source: Source, window_bytes: int = WINDOW_BYTES) -> GgufHeader:
    """Read and check a GGUF header. Raises MetadataError naming the key or tensor that is wrong."""
    cursor = Cursor(source, window_bytes)
    version, num_tensors, num_keys = _read_preamble(cursor)
    metadata = _read_metadata(cursor, num_keys)
    alignment = _alignment(cursor, metadata)
    entries = _read_tensor_entries(cursor, num_tensors)
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = {e.name: _place(cursor, e, data_offset, alignment) for e in entries}
    if overlap := describe_overlap(list(tensors.values())):
        raise cursor.error(overlap)
    return GgufHeader(source, version, alignment, data_offset, metadata, tensors)


def _read_preamble(cursor: Cursor) -> tuple[int, int, int]:
    if (magic := cursor.take(4, "the magic")) != b"GGUF":
        raise cursor.error(f"starts with {magic!r}, not b'GGUF': it is not a GGUF file")
    version = cursor.number(_SCALARS[4], "the version")
    if version not in (2, 3):
        big_endian = version in (2 << 24, 3 << 24)
        what = "is a big-endian GGUF file" if big_endian else f"has GGUF version {version}"
        raise cursor.error(f"{what}; little-endian versions 2 and 3 are read", "convert it again")
    num_tensors = cursor.count("tensor count", _SMALLEST_TENSOR_BYTES, MAX_TENSORS)
    return version, num_tensors, cursor.count("metadata count", _SMALLEST_KEY_BYTES, MAX_METADATA_KEYS)


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Scalar | GgufArray]:
    metadata: dict[str, Scalar | GgufArray] = {}
    for _ in range(num_keys):
        key = cursor.string("a metadata key", cursor.MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, key, cursor.number(_SCALARS[4], f"the type of {key!r}"))
    return metadata


def _read_value(cursor: Cursor, key: str, kind: int) -> Scalar | GgufArray:
    where = f"the value of {key!r}"
    if kind == _STRING:
        return cursor.string(where, cursor.MAX_STRING_BYTES)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.error(f"metadata key {key!r} has unknown value type {kind}")
    value: int | float = cursor.number(_SCALARS[kind], where)
    if kind == _BOOL:
        if value > 1:
            raise cursor.error(f"metadata key {key!r} is boolean {value}, not 0 or 1")
        return bool(value)
    return value


def _read_array(cursor: Cursor, key: str) -> GgufArray:
    kind = cursor.number(_SCALARS[4], f"the element type of {key!r}")
    if kind != _STRING and kind not in _SCALARS:
        raise cursor.error(f"metadata key {key!r} is an array of unknown or nested value type {kind}")
    element_bytes = 8 if kind == _STRING else _SCALARS[kind].size
    count = cursor.count(f"length of {key!r}", element_bytes, cursor.MAX_ARRAY_ELEMENTS)
    start = cursor.position
    if kind == _STRING:
        cursor.skip_strings(count, key)
    else:
        cursor.skip(count * element_bytes, f"array {key!r}")
    return GgufArray(kind, count, start, cursor.position - start)


def _alignment(cursor: Cursor, metadata: dict[str, Scalar | GgufArray]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 8 or value > 1 << 16 or value & (value - 1):
        raise cursor.error(f"general.alignment is {value!r}, not a power of two between 8 and 65536")
    return value


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    kind: ggml_types.GgmlType
    offset: int


def _read_tensor_entries(cursor: Cursor, num_tensors: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for _ in range(num_tensors):
        entry = _read_entry(cursor)
        if entry.name in entries:
            raise cursor.error(f"tensor {entry.name!r} appears twice")
        entries[entry.name] = entry
    return list(entries.values())


def _read_entry(cursor: Cursor) -> _Entry:
    name = cursor.string("a tensor name", cursor.MAX_NAME_BYTES)
    num_dims = cursor.number(_SCALARS[4], f"the dimensions of {name!r}")
    if not 1 <= num_dims <= MAX_DIMENSIONS:
        raise cursor.error(f"tensor {name!r} has {num_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
    sizes = tuple(cursor.number(_SCALARS[10], f"the shape of {name!r}") for _ in range(num_dims))
    kind_id = cursor.number(_SCALARS[4], f"the type of {name!r}")
    if (kind := ggml_types.BY_ID.get(kind_id)) is None:
        raise cursor.error(f"tensor {name!r} has unknown ggml type {kind_id}")
    offset = cursor.number(_SCALARS[10], f"the offset of {name!r}")
    return _Entry(name, sizes[::-1], kind, offset)


def _place(cursor: Cursor, entry: _Entry, data_offset: int, alignment: int) -> TensorInfo:
    """Turn a relative offset into an absolute range inside the file."""
    name, kind, row = entry.name, entry.kind, entry.shape[-1]
    if min(entry.shape) < 1:
        raise cursor.error(f"tensor {name!r} has an empty shape {list(entry.shape)}")
    if row % kind.block_size:
        raise cursor.error(f"tensor {name!r} has rows of {row} values, not whole {kind.name} blocks of {kind.block_size}")
    if entry.offset % alignment:
        raise cursor.error(f"tensor {name!r} at offset {entry.offset} is not aligned to {alignment} bytes")
    num_bytes = kind.block_bytes
    for size in (*entry.shape[:-1], row // kind.block_size):
        num_bytes *= size
    end = data_offset + entry.offset + num_bytes
    if end > cursor.source.size_bytes:
        raise cursor.error(
            f"tensor {name!r} would end at byte {end}, and the file holds {cursor.source.size_bytes}",
            "the file is truncated or its header lies",
        )
    return TensorInfo(name, kind.name, entry.shape, cursor.source.name, data_offset + entry.offset, num_bytes)


def _describe(value: object) -> str:
    if value is None:
        return "missing"
    return "an array" if isinstance(value, GgufArray) else f"{value!r}"[:80]
