"""Attention layers over paged K/V, and what all layers of one forward share.

The decoder builds a context once per forward. Families with other projections (gates, partial rotary) use `attend` alone, once
K/V are in place. It knows pages by number, and no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.backend import Backend
from paceline_kernels.paged_attention import (
    PrefillContext,
    VerifyContext,
    gated,
    prefill_attention,
    prefill_context,
    verify_attention,
    verify_context,
)
from paceline_kernels.place_heads import HeadLayout, HeadNorms, KvCells, place_heads
from paceline_kernels.rotary import RotaryTable
from paceline_runtime.batch import ForwardBatch, VerifyBatch
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.norm import RmsNorm


@dataclass(frozen=True)
class AttentionContext:
    """What all layers of a forward share: the rotary table, and what attention needs of a verify or of each prefill chunk."""

    batch: ForwardBatch
    pages: PageStore
    rotary: RotaryTable
    verify: VerifyContext | None
    prefills: tuple[PrefillContext, ...]

    def kv_cells(self, layer: int) -> KvCells:
        """Where the rows' K/V go in the pages of layer `layer`."""
        return KvCells(self.pages.keys[layer], self.pages.values[layer], self.batch.cells)


def attention_context(batch: ForwardBatch, pages: PageStore, rotary: RotaryTable) -> AttentionContext:
    """Prepare a forward; masks are in the dtype of the rotary table, which is the engine's."""
    dtype = rotary.cos.dtype
    if isinstance(batch, VerifyBatch):
        verify = verify_context(batch.page_table, batch.lengths, batch.width, PAGE_TOKENS, dtype)
        return AttentionContext(batch, pages, rotary, verify, ())
    prefills = tuple(
        prefill_context(batch.page_table[index], chunk.start, chunk.num_tokens, dtype)
        for index, chunk in enumerate(batch.chunks)
    )
    return AttentionContext(batch, pages, rotary, None, prefills)


def attend(
    context: AttentionContext, layer: int, q: torch.Tensor, scale: float, gate: torch.Tensor | None = None
) -> torch.Tensor:
    """Attend with q [N, Hq, D] over pages that hold the rows' own K/V, then gate with the sigmoid of `gate`: [N, Hq, D] all."""
    batch, keys, values = context.batch, context.pages.keys[layer], context.pages.values[layer]
    if isinstance(batch, VerifyBatch):
        assert context.verify is not None
        shape = (-1, batch.width, *q.shape[1:])
        gate = None if gate is None else gate.unflatten(0, shape[:2])  # type: ignore[no-untyped-call]
        return verify_attention(q.view(shape), keys, values, context.verify, scale, gate).flatten(0, 1)
    parts = [
        prefill_attention(q[chunk.offset : chunk.offset + chunk.num_tokens], keys, values, prefill, scale)
        for chunk, prefill in zip(batch.chunks, context.prefills, strict=True)
    ]
    return gated(parts[0] if len(parts) == 1 else torch.cat(parts), gate)


class Attention:
    """Grouped-query attention with rotary positions and, where a family has them, norms on the heads of q and k.

    `layer` is the index into the K/V pages; `qkv` holds the rows of q, k and v stacked in this order.
    """

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        layout: HeadLayout,
        *,
        layer: int,
        q_norm: RmsNorm | None = None,
        k_norm: RmsNorm | None = None,
    ) -> None:
        self.qkv, self.out, self.layer = qkv, out, layer
        self._layout, self._norms = layout, None
        if q_norm is not None and k_norm is not None:
            self._norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)

    def __call__(self, x: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        q = place_heads(self.qkv(x), self._layout, self._norms, context.rotary, context.kv_cells(self.layer))
        return self.out.to_be_added(attend(context, self.layer, q, self._layout.head_dim**-0.5).flatten(1))

    def project(
        self, x: torch.Tensor, rotary: RotaryTable, *, backend: Backend = Backend.AUTO
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k (normed and rotated) and v of rows x [N, H]: [N, heads, D] each."""
        projected = self.qkv(x)
        # Pages of one token each, one after the other.
        k, v = projected.new_empty((2, len(x), 1, self._layout.num_kv_heads, self._layout.head_dim))
        kv = KvCells(k, v, torch.arange(len(x), device=x.device))
        q = place_heads(projected, self._layout, self._norms, rotary, kv, backend=backend)
        return q, k[:, 0], v[:, 0]
