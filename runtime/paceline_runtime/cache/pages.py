"""K/V of the full-attention layers, in pages of 64 tokens.

Layers write and read through `batch.cells` and `batch.page_table`; which page belongs to whom is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


class PageStore:
    """The page tensors; page 0 is the dummy that inert rows write to.

    keys, values: one [num_pages, PAGE_TOKENS, num_kv_heads, head_dim] tensor per attention layer
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.keys, self.values = tensors["keys"].unbind(), tensors["values"].unbind()
        self.num_pages = tensors["keys"].shape[1]

    def memory_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
