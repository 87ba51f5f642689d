"""Reader of safetensors headers, single files and sharded checkpoints, for `facts` and the loader.

A file that the reference implementation would not open (a gap, an overlap, bytes left over) is refused here too, so a
truncated download is found in milliseconds. Format: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from paceline_compat.errors import MetadataError
from paceline_compat.formats.tensors import TensorInfo, describe_overlap, name_some
from paceline_compat.places.source import Folder, Source, find, read_all, safe_name

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the reference implementation's limit
MAX_INDEX_BYTES = 64 << 20
MAX_DIMENSIONS = 8
_FIRST_READ_BYTES = 64 << 10  # one read instead of two for most headers: each is a round trip on a remote source

DTYPE_BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64,
    "C64": 64,
}  # fmt: skip


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry_decoder = msgspec.json.Decoder(_Entry)
_metadata_decoder = msgspec.json.Decoder(dict[str, str])
_index_decoder = msgspec.json.Decoder(_Index)


@dataclass(frozen=True)
class SafetensorsHeader:
    """One file's tensors by name, in the header's order, and its free-form metadata."""

    source: Source
    metadata: dict[str, str]
    tensors: dict[str, TensorInfo] = field(repr=False)


def read_header(source: Source) -> SafetensorsHeader:
    """Read and check one file's header. Raises MetadataError naming the tensor that is wrong."""
    raw, data_offset = _header_bytes(source)
    try:
        entries = _raw_decoder.decode(raw)
        metadata = _metadata_decoder.decode(entries.pop("__metadata__", msgspec.Raw(b"{}")))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MetadataError(source.name, f"its header is not the JSON of a safetensors file: {error}") from None
    tensors = {name: _tensor(source, name, entry, data_offset) for name, entry in entries.items()}
    _check_coverage(source, list(tensors.values()), data_offset)
    return SafetensorsHeader(source, metadata, tensors)


def read_folder(folder: Folder) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint folder: by its index when it has one, else its single file."""
    if (index := find(folder, INDEX_FILE)) is not None:
        return _read_sharded(folder, index)
    if (single := find(folder, SINGLE_FILE)) is not None:
        return read_header(single).tensors
    raise MetadataError(folder.name, f"holds neither {INDEX_FILE} nor {SINGLE_FILE}", "name a safetensors checkpoint")


def _header_bytes(source: Source) -> tuple[bytes, int]:
    if source.size_bytes < 8:
        raise MetadataError(source.name, f"holds {source.size_bytes} bytes, too few for a safetensors file")
    first = source.read(0, min(source.size_bytes, _FIRST_READ_BYTES))
    length = int.from_bytes(first[:8], "little")
    if length > min(MAX_HEADER_BYTES, source.size_bytes - 8):
        raise MetadataError(
            source.name,
            f"claims a header of {length} bytes, and the file holds {source.size_bytes}",
            "the file is truncated or is not a safetensors file",
        )
    if length and first[8:9] != b"{":  # before reading up to 100 MB of what is no header
        raise MetadataError(source.name, "its header is not the JSON of a safetensors file")
    end = 8 + length
    return first[8:end] + (source.read(len(first), end - len(first)) if end > len(first) else b""), end


def _tensor(source: Source, name: str, raw: msgspec.Raw, data_offset: int) -> TensorInfo:
    try:
        entry = _entry_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MetadataError(source.name, f"tensor {name!r}: {error}") from None
    begin, end = entry.data_offsets
    if entry.dtype not in DTYPE_BITS:
        raise MetadataError(source.name, f"tensor {name!r} has unknown dtype {entry.dtype!r}")
    if len(entry.shape) > MAX_DIMENSIONS or any(not 0 <= size <= source.size_bytes * 8 for size in entry.shape):
        raise MetadataError(source.name, f"tensor {name!r} cannot have the shape {entry.shape[:MAX_DIMENSIONS]}")
    if not 0 <= begin <= end <= source.size_bytes - data_offset:
        raise MetadataError(
            source.name,
            f"tensor {name!r} claims bytes {begin} to {end} of the {source.size_bytes - data_offset} there are",
            "the file is truncated or its header lies",
        )
    bits = math.prod(entry.shape) * DTYPE_BITS[entry.dtype]
    if bits != (end - begin) * 8:
        raise MetadataError(
            source.name, f"tensor {name!r} of {entry.dtype} {entry.shape} does not fill its {end - begin} bytes"
        )
    return TensorInfo(name, entry.dtype, tuple(entry.shape), source.name, data_offset + begin, end - begin)


def _check_coverage(source: Source, tensors: list[TensorInfo], data_offset: int) -> None:
    """Tensors must tile the data exactly: a gap hides bytes, and a duplicate JSON key shows as one."""
    if overlap := describe_overlap(tensors):
        raise MetadataError(source.name, overlap)
    covered, held = sum(t.num_bytes for t in tensors), source.size_bytes - data_offset
    if covered != held:
        raise MetadataError(source.name, f"its tensors cover {covered} bytes, and the file holds {held} of data")


def _read_sharded(folder: Folder, index: Source) -> dict[str, TensorInfo]:
    try:
        weight_map = _index_decoder.decode(read_all(index, MAX_INDEX_BYTES)).weight_map
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MetadataError(index.name, f"is not a weight index: {error}") from None
    found: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values())):
        found |= _read_shard(folder, index, shard, weight_map)
    if lost := [name for name in weight_map if name not in found]:
        raise MetadataError(index.name, f"names tensors that no shard holds: {name_some(lost)}")
    return found


def _read_shard(folder: Folder, index: Source, shard: str, weight_map: dict[str, str]) -> dict[str, TensorInfo]:
    if not shard.endswith(".safetensors"):
        raise MetadataError(index.name, f"names shard {shard!r}, which is not a .safetensors file")
    source = find(folder, safe_name(index.name, shard))
    if source is None:
        raise MetadataError(folder.name, f"shard {shard!r} is missing", "download the checkpoint again")
    tensors = read_header(source).tensors
    if strays := [name for name in tensors if weight_map.get(name) != shard]:
        raise MetadataError(index.name, f"does not place in {shard!r} what that file holds: {name_some(strays)}")
    return tensors
