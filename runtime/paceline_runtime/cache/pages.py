"""K/V of the full-attention layers, and further per-token planes, in pages of 64 tokens.

Layers write and read through `batch.cells` and `batch.page_table`; which page belongs to whom is the scheduler's business.
A store zeroes its memory once: a masked key weighs 0, and 0 times an uninitialised NaN would still be NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline_compat.memory.parts import PAGE_TOKENS


@dataclass(frozen=True)
class PlaneSpec:
    """A plane kept in the pages beside K/V: `shape` and `dtype` of one token's entry, or of one page's."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    per_page: bool = False

    def page_shape(self, page_size: int) -> tuple[int, ...]:
        """Shape of what one page of `page_size` tokens holds."""
        return self.shape if self.per_page else (page_size, *self.shape)


class PageStore:
    """The page tensors; page 0 is the dummy that inert rows write to.

    keys, values: one [num_pages, PAGE_TOKENS, num_kv_heads, head_dim] tensor per attention layer
    planes:       name -> [num_pages, PAGE_TOKENS, *shape], or [num_pages, *shape] of those with one entry a page
    """

    def __init__(
        self,
        *,
        num_pages: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        planes: Sequence[PlaneSpec] = (),
    ) -> None:
        shape = (num_pages, PAGE_TOKENS, num_kv_heads, head_dim)
        self.num_pages = num_pages
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.planes = {
            plane.name: torch.zeros((num_pages, *plane.page_shape(PAGE_TOKENS)), dtype=plane.dtype, device=device)
            for plane in planes
        }

    def memory_bytes(self) -> int:
        """Bytes of all page tensors."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *self.planes.values()))
