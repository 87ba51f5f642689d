"""The memory that lies there for as long as an engine runs: buffers, how many of each are needed, and what they take.

`buffers` declares them from facts; the planner adds them up, and the runtime allocates the same values: nobody else counts
bytes of what a token, a page, a seat or a slot has. A layout knows no device and no budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from paceline_compat.memory.parts import DTYPE_BYTES, PAGE_TOKENS

Unit = Literal["token", "page", "seat", "slot"]
Place = Literal["device", "host"]

_ITEM_BYTES = DTYPE_BYTES | {"int64": 8}


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor: `shape` and `dtype` of what each token, page, seat or slot has in it.

    part:    the line of the plan that counts it
    stack:   dimensions before the count: what all layers keep is one tensor [layers, count, *shape]
    place:   "host" is memory of the machine, pinned where there is a GPU
    divided: the dimension of `shape` that shards divide among them; None where each has all of it
    """

    part: str
    name: str
    per: Unit
    shape: tuple[int, ...]
    dtype: str
    stack: tuple[int, ...] = ()
    place: Place = "device"
    divided: int | None = None

    @property
    def unit_bytes(self) -> int:
        """Bytes that one token, page, seat or slot has in it."""
        return math.prod(self.stack) * math.prod(self.shape) * _ITEM_BYTES[self.dtype]

    def shard(self, num_shards: int) -> Buffer:
        """What one of `num_shards` has of it. ValueError where they cannot divide it evenly."""
        if self.divided is None or num_shards == 1:
            return self
        size, rest = divmod(self.shape[self.divided], num_shards)
        if rest:
            raise ValueError(f"{self.name}: {num_shards} shards cannot divide {self.shape[self.divided]} evenly")
        shape = (*self.shape[: self.divided], size, *self.shape[self.divided + 1 :])
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Buffers and how many pages, seats and slots they have, the dummy of each (number 0) included."""

    buffers: tuple[Buffer, ...]
    num_pages: int = 0
    num_seats: int = 0
    num_slots: int = 0

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Shape of the tensor: pages of tokens are two dimensions, [num_pages, PAGE_TOKENS]."""
        counts = {
            "token": (self.num_pages, PAGE_TOKENS),
            "page": (self.num_pages,),
            "seat": (self.num_seats,),
            "slot": (self.num_slots,),
        }
        return (*buffer.stack, *counts[buffer.per], *buffer.shape)

    def num_bytes(self, *parts: str, place: Place = "device") -> int:
        """Bytes in one place: of these parts, or of all."""
        chosen = [buffer for buffer in self.buffers if buffer.place == place and (not parts or buffer.part in parts)]
        return sum(math.prod(self.shape(buffer)) * _ITEM_BYTES[buffer.dtype] for buffer in chosen)

    def bytes_per(self, unit: Unit) -> int:
        """Bytes on the device for one more token, page, seat or slot; a page's tokens are counted with it."""
        own = sum(buffer.unit_bytes for buffer in self.buffers if buffer.per == unit and buffer.place == "device")
        return own + PAGE_TOKENS * self.bytes_per("token") if unit == "page" else own
