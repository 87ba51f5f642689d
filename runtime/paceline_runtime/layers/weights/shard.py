"""The part of a model that one process holds. `Parameters` takes it; a layer says of its matrix where it is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["rows", "columns"]
"""What shards divide of a matrix: its outputs (`rows`), or its inputs (`columns`), which leaves each shard a partial sum."""


@dataclass(frozen=True)
class Shard:
    """Which of `size` equal parts of every divided matrix this process holds. Parts are not implemented: `size` must be 1."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size != 1 or self.rank != 0:
            raise NotImplementedError(
                f"shard {self.rank} of {self.size}: tensor parallelism is not implemented, use a size of 1"
            )
