"""Attention layers over paged K/V, and what all layers of one forward share.

`attend` is the part that families with other projections (gates, partial rotary) use on their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory import PAGE_TOKENS
from paceline_kernels.paged_attention import (
    VerifyContext,
    prefill_attention,
    prefill_bias,
    verify_attention,
    verify_context,
    write_pages,
)
from paceline_kernels.rotary import RotaryTable, apply_rotary
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.norm import RmsNorm


@dataclass(frozen=True)
class AttentionContext:
    """Built once per forward: rotary table, masks and gather indices of the batch's rows."""

    batch: ForwardBatch
    pages: PageStore
    rotary: RotaryTable
    verify: VerifyContext | None
    biases: tuple[torch.Tensor | None, ...]


def attention_context(batch: ForwardBatch, pages: PageStore, rotary: RotaryTable) -> AttentionContext:
    """Prepare a forward; masks are in the dtype of the rotary table, which is the engine's."""
    dtype, device = rotary.cos.dtype, batch.ids.device
    verify = None
    if batch.width:
        verify = verify_context(batch.page_table, batch.lengths, batch.width, PAGE_TOKENS, dtype)
    biases = tuple(prefill_bias(chunk.num_tokens, chunk.start, dtype, device) for chunk in batch.chunks)
    return AttentionContext(batch, pages, rotary, verify, biases)


def attend(
    context: AttentionContext, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Write k, v [N, Hkv, D] to the pages of K/V layer `layer`, then attend with q [N, Hq, D]: [N, Hq, D]."""
    batch, keys, values = context.batch, context.pages.keys[layer], context.pages.values[layer]
    write_pages(keys, values, batch.slots, k, v)
    if batch.width:
        rows = q.view(-1, batch.width, *q.shape[1:])
        out = verify_attention(rows, keys, values, batch.page_table, batch.lengths, scale, context=context.verify)
        return out.flatten(0, 1)
    parts = [
        prefill_attention(
            q[chunk.offset : chunk.offset + chunk.num_tokens],
            keys,
            values,
            batch.page_table[index],
            chunk.start,
            scale,
            bias=context.biases[index],
        )
        for index, chunk in enumerate(batch.chunks)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Attention:
    """Grouped-query attention with rotary positions and, where a family has them, norms on the heads of q and k.

    `layer` is the index into the K/V pages; `qkv` holds the rows of q, k and v stacked in this order.
    """

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: RmsNorm | None = None,
        k_norm: RmsNorm | None = None,
    ) -> None:
        self.qkv, self.out, self.layer = qkv, out, layer
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_norm, self.k_norm = q_norm, k_norm

    def __call__(self, x: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        rotated, v = heads.tensor_split((self.num_heads + self.num_kv_heads,), dim=1)
        # q and k are neighbours in the stack, so one rotation serves both.
        q, k = apply_rotary(self._normed(rotated), context.rotary).tensor_split((self.num_heads,), dim=1)
        return self.out(attend(context, self.layer, q, k, v, self.head_dim**-0.5).flatten(1))

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        if self.q_norm is None or self.k_norm is None:
            return heads
        q, k = heads.tensor_split((self.num_heads,), dim=1)
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
