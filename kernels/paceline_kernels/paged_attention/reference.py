"""Attention over K/V in pages, in plain torch: it gathers the pages of a request and calls torch's attention.

The face calls it. It refuses to know about requests and layers, and reads nothing back to the host: shapes come from shapes,
lengths stay on the device.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_kernels.paged_attention.contexts import Gather, PrefillContext, VerifyContext


def verify_gather(
    page_table: torch.Tensor, lengths: torch.Tensor, width: int, page_size: int, dtype: torch.dtype, first: int
) -> Gather:
    """Locate the keys of each request and say which of its rows sees them.

    Positions past the block are read from position 0 instead, so that what lies there, NaN included, never takes part:
    a bias of -inf alone would turn a NaN key into a NaN score, and a weight of 0 a NaN value into a NaN output.
    """
    positions = torch.arange(page_table.shape[1] * page_size, device=page_table.device)
    cells = (page_table * page_size).repeat_interleave(page_size, dim=1) + positions % page_size
    cells = torch.where(positions < (lengths + width)[:, None], cells, cells[:, :1])
    last_seen = lengths[:, None] + torch.arange(width, device=lengths.device)
    hidden = (positions > last_seen[:, :, None]) | (positions < lengths.clamp(max=first)[:, None, None])
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return Gather(cells.flatten(), bias[:, None])


def verify_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: VerifyContext,
    scale: float,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """The operation, over gathered keys and values."""
    gather = context.gather
    assert gather is not None, "the context was prepared for the kernel"
    k, v = (_flat(pages).index_select(0, gather.cells).view(len(q), -1, *pages.shape[2:]) for pages in (keys, values))
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=gather.bias, scale=scale, enable_gqa=True
    )
    return gated(out.transpose(1, 2), gate)


def gated(attended: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """Attended heads times the sigmoid of a gate of their shape, if there is one; each rounded to their dtype."""
    return attended if gate is None else attended * gate.sigmoid()


def prefill_mask(start: int, num_tokens: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Additive causal mask [T, start + T] of a chunk; None at start 0."""
    if start == 0:
        return None
    mask = torch.full((num_tokens, start + num_tokens), -torch.inf, dtype=dtype, device=device)
    return mask.triu_(start + 1)


def prefill_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: PrefillContext, scale: float
) -> torch.Tensor:
    """The operation, over gathered keys and values."""
    k, v = (chunk_rows(pages, context, len(q))[None] for pages in (keys, values))
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k,
        v,
        attn_mask=context.mask,
        is_causal=context.mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1)


def chunk_rows(cache: torch.Tensor, context: PrefillContext, num_tokens: int) -> torch.Tensor:
    """The keys or values of a request up to its chunk's end: [Hkv, start + T, D]."""
    end = context.start + num_tokens
    pages = context.pages[: -(-end // cache.shape[1])]
    return cache.index_select(0, pages).flatten(0, 1)[:end].transpose(0, 1)


def write_pages(keys: torch.Tensor, values: torch.Tensor, cells: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store rows k, v [N, Hkv, D] at cells int64 [N]; of rows that share a cell (inert ones) any one stays."""
    _flat(keys).index_copy_(0, cells, k)
    _flat(values).index_copy_(0, cells, v)


def _flat(pages: torch.Tensor) -> torch.Tensor:
    return pages.view(-1, *pages.shape[2:])
