"""Opens a GGUF file: picks the module that knows its architecture, dequantizes tensors as they are read.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Headers are read by paceline_compat.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.gguf_header import GgufHeader, read_header
from paceline_compat.source import LocalSource
from paceline_compat.tensors import TensorInfo
from paceline_runtime.loaders.checkpoint import Checkpoint, StoredTensor, read_bytes
from paceline_runtime.loaders.dequantize import UNPACKERS, dequantize

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

ARCHITECTURES: Mapping[str, str] = {"llama": "paceline_runtime.loaders.gguf_llama"}
"""`general.architecture` -> module with `describe(header) -> GgufModel`."""


@dataclass(frozen=True)
class GgufTensor:
    """What a stored tensor is to the family: its name, and what undoes the converter's change (shape kept)."""

    name: str
    restore: Callable[[torch.Tensor], torch.Tensor] | None = None


class GgufModel(Protocol):
    """A GGUF architecture in Hugging Face terms."""

    architecture: str
    config: Mapping[str, Any]

    def tensor(self, stored_name: str) -> GgufTensor | None:
        """The family's tensor, or None for one that the config has taken in. Unknown names pass as they are."""
        ...


def open_gguf(path: Path, *, config_only: bool = False) -> Checkpoint:
    """Read the header. Raises MetadataError for what is wrong in it, an architecture or tensor type that is not read."""
    header = read_header(LocalSource(path))
    model = _describe(header)
    tensors = () if config_only else tuple(_tensors(header, model))
    return Checkpoint(str(path), model.architecture, model.config, tensors)


def read_tensor(info: TensorInfo, device: torch.device) -> torch.Tensor:
    """One tensor as stored floats, or dequantized to float32; unpacked on `device`, to which only packed bytes go."""
    data = read_bytes(info).to(device)
    if info.dtype in _FLOATS:
        return data.view(_FLOATS[info.dtype]).view(info.shape)
    return dequantize(data, info.dtype, info.shape)


def _describe(header: GgufHeader) -> GgufModel:
    name = header.require("general.architecture", str)
    if name not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise MetadataError(header.source.name, f"GGUF architecture {name!r} is not supported; there are {supported}")
    if header.split_count > 1:
        raise MetadataError(header.source.name, f"is one of {header.split_count} splits", "merge them into one file")
    _check_types(header)
    return cast(GgufModel, importlib.import_module(ARCHITECTURES[name]).describe(header))


def _check_types(header: GgufHeader) -> None:
    known = _FLOATS.keys() | UNPACKERS.keys()
    if unknown := sorted({info.dtype for info in header.tensors.values()} - known):
        raise MetadataError(
            header.source.name,
            f"holds tensors of {', '.join(unknown)}, and only {', '.join(sorted(known))} are read",
            "use a file quantized to one of these",
        )


def _tensors(header: GgufHeader, model: GgufModel) -> list[StoredTensor]:
    found = []
    for info in header.tensors.values():
        if (target := model.tensor(info.name)) is not None:
            read = functools.partial(_read_restored, info, target)
            found.append(StoredTensor(target.name, info.shape, info.num_bytes, read))
    return found


def _read_restored(info: TensorInfo, target: GgufTensor, device: torch.device) -> torch.Tensor:
    tensor = read_tensor(info, device)
    return target.restore(tensor) if target.restore else tensor
