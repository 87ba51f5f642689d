"""One tensor as a header describes it, whichever the format. Loaders read its bytes; this package never does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from paceline_compat.errors import MetadataError


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, type and place of one tensor.

    `dtype` is the safetensors name (`BF16`) or the ggml name (`Q4_K`); `shape` has the slowest dimension
    first, as torch counts; `offset` is absolute in `file`, both in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Values, not bytes: quantized blocks count their 32 or 256 values."""
        return math.prod(self.shape)


def describe_overlap(tensors: list[TensorInfo]) -> str | None:
    """Name the first two tensors of one file that claim the same bytes, or None."""
    ordered = sorted((t for t in tensors if t.num_bytes), key=lambda t: (t.offset, t.num_bytes))
    for left, right in pairwise(ordered):
        if left.offset + left.num_bytes > right.offset:
            return f"tensors {left.name!r} and {right.name!r} overlap at byte {right.offset}"
    return None


def renamed(source: str, tensors: Mapping[str, TensorInfo], rename: Callable[[str], str]) -> dict[str, TensorInfo]:
    """The table under other names; each tensor keeps its stored one. MetadataError where two would share a name."""
    out = {rename(stored): info for stored, info in tensors.items()}
    if len(out) != len(tensors):
        raise MetadataError(source, "holds the same tensor under two spellings")
    return out


@dataclass(frozen=True, slots=True)
class Differences:
    """How a header's tensors differ from those that a config asks for, by name; for a shape, what each of them says."""

    missing: list[str]
    surplus: list[str]
    misshapen: list[str]


def differences(found: Mapping[str, TensorInfo], wanted: Mapping[str, tuple[int, ...]]) -> Differences:
    """Compare names and shapes."""
    return Differences(
        [name for name in wanted if name not in found],
        [name for name in found if name not in wanted],
        [
            f"{name} is {list(found[name].shape)}, and the config says {list(shape)}"
            for name, shape in wanted.items()
            if name in found and found[name].shape != shape
        ],
    )


def name_some(names: list[str]) -> str:
    """The first few names of a list that may be long."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
