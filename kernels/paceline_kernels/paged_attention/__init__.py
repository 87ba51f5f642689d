"""Attention over paged K/V: rows of a verify over many requests, a chunk of one request's prefill, and the write.

The attention layers call it. A context holds what all layers of a forward share; whoever makes it chooses the implementation
for all of them.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.paged_attention import reference
from paceline_kernels.paged_attention.contexts import PrefillContext, VerifyContext
from paceline_kernels.paged_attention.reference import gated, write_pages

__all__ = [
    "PrefillContext",
    "VerifyContext",
    "gated",
    "prefill_attention",
    "prefill_context",
    "verify_attention",
    "verify_context",
    "write_pages",
]


def verify_context(
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    width: int,
    page_size: int,
    dtype: torch.dtype,
    first: int = 0,
    *,
    backend: Backend = Backend.AUTO,
) -> VerifyContext:
    """Prepare a verify of `width` rows per request with queries of `dtype`.

    page_table: int64 [B, P]; lengths: int64 [B]. Rows see no position before `first`; in a request of fewer
    tokens, none before its length.
    """
    if runs_kernel(backend, lengths.device, dtype):
        return VerifyContext(page_table, lengths, first)
    gather = reference.verify_gather(page_table, lengths, width, page_size, dtype, first)
    return VerifyContext(page_table, lengths, first, gather)


def verify_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: VerifyContext,
    scale: float,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of W rows per request over its pages, times the sigmoid of `gate` if there is one: [B, W, Hq, D].

    Row j of request b stands at position lengths[b] + j and sees positions up to its own; its K/V are in the pages
    already. Positions from lengths[b] + W on may hold anything; those before `first`, finite numbers, are not seen.

    q, gate: [B, W, Hq, D]; keys, values: [num_pages, page_size, Hkv, D]
    """
    if context.gather is None:
        from paceline_kernels.paged_attention import kernel

        return kernel.verify_attention(q, keys, values, context, scale, gate)
    return reference.verify_attention(q, keys, values, context, scale, gate)


def prefill_context(
    pages: torch.Tensor, start: int, num_tokens: int, dtype: torch.dtype, *, backend: Backend = Backend.AUTO
) -> PrefillContext:
    """Prepare the attention of a chunk of `num_tokens` rows from position `start` on, over a request's pages int64 [P]."""
    if runs_kernel(backend, pages.device, dtype):
        from paceline_kernels.paged_attention import fused_prefill

        return PrefillContext(pages, start, fused_prefill.mask(start, num_tokens), is_fused=True)
    return PrefillContext(pages, start, reference.prefill_mask(start, num_tokens, dtype, pages.device))


def prefill_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: PrefillContext, scale: float
) -> torch.Tensor:
    """Causal attention of one request's chunk over its pages: [T, Hq, D]; row j stands at position start + j.

    q: [T, Hq, D]; keys, values: [num_pages, page_size, Hkv, D], the chunk's own K/V included
    """
    if context.is_fused:
        from paceline_kernels.paged_attention import fused_prefill

        return fused_prefill.prefill_attention(q, keys, values, context, scale)
    return reference.prefill_attention(q, keys, values, context, scale)
