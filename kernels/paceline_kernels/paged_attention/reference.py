"""Attention over K/V in pages, in plain torch: gathers the pages of a request and calls torch's fused attention.

Called through the package, and by kernel tests as the oracle. It refuses to know about requests and layers, and reads
nothing back to the host: shapes come from shapes, lengths stay on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class VerifyContext:
    """What all layers of one verify share; built once per forward.

    slots: int64 [B * L], cache slot of each of the L = P * page_size key positions of each request
    bias:  [B, 1, W, L] of the query's dtype, 0 where row j sees the key and -inf elsewhere
    """

    slots: torch.Tensor
    bias: torch.Tensor


def verify_context(
    page_table: torch.Tensor, lengths: torch.Tensor, width: int, page_size: int, dtype: torch.dtype, first: int = 0
) -> VerifyContext:
    """Locate the keys of each request and say which of its rows sees them.

    Positions before `first` are seen by nobody; only a request of fewer tokens has none to spare.

    Positions past the block are read from position 0 instead, so that what lies there, NaN included, never takes part:
    a bias of -inf alone would turn a NaN key into a NaN score, and a weight of 0 a NaN value into a NaN output.
    """
    positions = torch.arange(page_table.shape[1] * page_size, device=page_table.device)
    slots = (page_table * page_size).repeat_interleave(page_size, dim=1) + positions % page_size
    slots = torch.where(positions < (lengths + width)[:, None], slots, slots[:, :1])
    last_seen = lengths[:, None] + torch.arange(width, device=lengths.device)
    hidden = (positions > last_seen[:, :, None]) | (positions < lengths.clamp(max=first)[:, None, None])
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return VerifyContext(slots.flatten(), bias[:, None])


def verify_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    context: VerifyContext | None = None,
    first: int = 0,
) -> torch.Tensor:
    """Causal attention of W rows per request over its pages: [B, W, Hq, D].

    Row j of request b stands at position lengths[b] + j and sees positions up to its own; its K/V are in the pages
    already. Positions from lengths[b] + W on may hold anything; those before `first`, finite numbers, are not seen.

    q: [B, W, Hq, D]; keys, values: [num_pages, page_size, Hkv, D]; page_table: int64 [B, P]; lengths: int64 [B]
    """
    batch, width = q.shape[:2]
    context = context or verify_context(page_table, lengths, width, keys.shape[1], q.dtype, first)
    k, v = (_flat(pages).index_select(0, context.slots).view(batch, -1, *pages.shape[2:]) for pages in (keys, values))
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=context.bias, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def prefill_bias(num_tokens: int, start: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """Additive causal mask [T, start + T] of a chunk; None at start 0, where torch's own causal flag does.

    On a GPU it is torch's symbolic mask, under which attention stays fused: nothing of the size [T, start + T] exists.
    """
    if start == 0:
        return None
    if device.type == "cuda":
        # Imported here: it brings torch's compiler and Triton along, 150 MiB that a server on a CPU has no use for.
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(num_tokens, start + num_tokens)
    bias = torch.full((num_tokens, start + num_tokens), -torch.inf, dtype=dtype, device=device)
    return bias.triu_(start + 1)


def prefill_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    start: int,
    scale: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of one request's chunk over its pages: [T, Hq, D]; row j stands at position start + j.

    q: [T, Hq, D]; keys, values: [num_pages, page_size, Hkv, D], the chunk's own K/V included; pages: int64 [P]
    """
    num_tokens, page_size = q.shape[0], keys.shape[1]
    end = start + num_tokens
    pages = pages[: -(-end // page_size)]
    k, v = (cache.index_select(0, pages).flatten(0, 1)[:end].transpose(0, 1)[None] for cache in (keys, values))
    if bias is None:
        bias = prefill_bias(num_tokens, start, q.dtype, q.device)
    query = q.transpose(0, 1)[None]
    groups = query.shape[1] // k.shape[1]
    if q.device.type == "cuda":
        # One batch entry per K/V head, broadcast over its query heads: under the symbolic mask torch 2.11 copies K/V for
        # each query head otherwise (4.8 KB a token at 1 KB of K/V). On a CPU the broadcast falls off the fused path.
        query = query[0].view(-1, groups, *query.shape[2:])
        k, v = (part[0][:, None].expand(-1, groups, -1, -1) for part in (k, v))
    out = functional.scaled_dot_product_attention(
        query, k, v, attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=query.shape[1] != k.shape[1]
    )
    return out.flatten(0, 1).transpose(0, 1)


def write_pages(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Store rows k, v [N, Hkv, D] at cache slots int64 [N]; rows that share a slot (inert ones) leave either."""
    _flat(keys).index_copy_(0, slots, k)
    _flat(values).index_copy_(0, slots, v)


def _flat(pages: torch.Tensor) -> torch.Tensor:
    return pages.view(-1, *pages.shape[2:])
