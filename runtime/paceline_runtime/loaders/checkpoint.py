"""A checkpoint opened for loading: its config in the Hugging Face spelling and a stream of its tensors.

What the format modules make and `load_target` consumes; refuses to know how tensors are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.tensors import TensorInfo


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: its name and shape as the family knows them, and how to read it onto a device, in a float dtype."""

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    read: Callable[[torch.device], torch.Tensor] = field(repr=False)


@dataclass(frozen=True)
class Checkpoint:
    """`architecture` as in a config's `architectures`; `tensors` in the order of the file, so that reads are sequential."""

    name: str
    architecture: str
    config: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...] = field(repr=False)


def read_bytes(info: TensorInfo) -> torch.Tensor:
    """The bytes of a tensor on disk as uint8 [num_bytes].

    Read, not mapped: touched pages of a mapping count as the process's memory until it is closed.
    """
    data = torch.empty(info.num_bytes, dtype=torch.uint8)
    with Path(info.file).open("rb", buffering=0) as file:
        file.seek(info.offset)
        view, done = data.numpy(), 0
        while done < info.num_bytes and (count := file.readinto(view[done:].data)):
            done += count
    if done != info.num_bytes:
        raise MetadataError(info.file, f"ended inside tensor {info.name!r}: it changed while it was read")
    return data
