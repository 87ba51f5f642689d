"""Writes small GGUF and safetensors files byte by byte, right ones and, through its parameters, wrong ones."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAFETENSORS_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "F8_E4M3": 1, "I64": 8}


def safetensors_header(tensors: dict[str, tuple[str, tuple[int, ...]]], edit: dict[str, Any] | None = None) -> bytes:
    """The length and the JSON of a safetensors file; `edit` replaces entries by name."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + math.prod(shape) * SAFETENSORS_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(entries | (edit or {})).encode()
    return struct.pack("<Q", len(raw)) + raw


def safetensors_bytes(tensors: dict[str, tuple[str, tuple[int, ...]]], edit: dict[str, Any] | None = None) -> bytes:
    """A whole safetensors file of zeros."""
    data = sum(math.prod(shape) * SAFETENSORS_BYTES[dtype] for dtype, shape in tensors.values())
    return safetensors_header(tensors, edit) + bytes(data)


def write_sparse_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file with its true size, whose data is a hole: gigabytes that take no disk."""
    header = safetensors_header(tensors)
    data = sum(math.prod(shape) * SAFETENSORS_BYTES[dtype] for dtype, shape in tensors.values())
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data)


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Path:
    """A checkpoint folder: `config.json` and one sparse `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_sparse_safetensors(folder / "model.safetensors", tensors)
    return folder


@dataclass
class GgufFile:
    """A GGUF file to be: metadata as (key, value type, raw value bytes), tensors as (name, ne, type id, offset)."""

    version: int = 3
    magic: bytes = b"GGUF"
    keys: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    tensors: list[tuple[bytes, tuple[int, ...], int, int]] = field(default_factory=list)
    num_keys: int | None = None
    num_tensors: int | None = None
    alignment: int = 32
    data_bytes: int = 0

    def add(self, key: str, kind: int, value: bytes) -> GgufFile:
        """Append a metadata key with already encoded value bytes."""
        self.keys.append((key.encode(), kind, value))
        return self

    def add_value(self, key: str, value: Any) -> GgufFile:
        """Append a metadata key, its value type taken from the Python type."""
        kind, raw = encode_value(value)
        return self.add(key, kind, raw)

    def add_tensor(self, name: str, ne: tuple[int, ...], type_id: int, num_bytes: int) -> GgufFile:
        """Append a tensor after the last one, aligned."""
        offset = -(-self.data_bytes // self.alignment) * self.alignment
        self.tensors.append((name.encode(), ne, type_id, offset))
        self.data_bytes = offset + num_bytes
        return self

    def header(self) -> bytes:
        """Everything before the data, padded."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        out = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_keys)
        for key, kind, value in self.keys:
            out += gguf_string(key) + struct.pack("<I", kind) + value
        for name, ne, type_id, offset in self.tensors:
            out += gguf_string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_id, offset)
        return out + bytes(-len(out) % self.alignment)

    def build(self) -> bytes:
        """The whole file, data zero."""
        return self.header() + bytes(self.data_bytes)

    def write_sparse(self, path: Path) -> Path:
        """The whole file on disk, its data a hole."""
        header = self.header()
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + self.data_bytes)
        return path


def gguf_string(value: bytes) -> bytes:
    """A GGUF string: length and bytes."""
    return struct.pack("<Q", len(value)) + value


def encode_value(value: Any) -> tuple[int, bytes]:
    """GGUF value type and bytes of a Python value; lists become arrays of their first element's type."""
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value.encode())
    items = [encode_value(item) for item in value]
    kind = items[0][0] if items else 4
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(raw for _, raw in items)
