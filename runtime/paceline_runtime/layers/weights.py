"""A weight with the tag that says how it is stored, and the part of a model that one process holds.

Made while a model is built, read by the linear and embedding layers; refuses to know where its numbers come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

DENSE = "dense"


@dataclass(frozen=True)
class Weight:
    """A matrix [rows, columns]. `kind` names its storage: `dense` is plain values in the engine's dtype."""

    kind: str
    data: torch.Tensor


@dataclass(frozen=True)
class Shard:
    """Which of `size` equal parts of every weight this process holds. Parts are not implemented: `size` must be 1."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size != 1 or self.rank != 0:
            raise NotImplementedError(
                f"shard {self.rank} of {self.size}: tensor parallelism is not implemented, use a size of 1"
            )
