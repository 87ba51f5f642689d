"""The attention of a prefill chunk in the form in which torch's attention stays fused on a GPU.

The face calls it on a GPU. Under torch's symbolic mask nothing of the size [T, start + T] exists.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from paceline_kernels.paged_attention.contexts import PrefillContext
from paceline_kernels.paged_attention.reference import chunk_rows


def mask(start: int, num_tokens: int) -> torch.Tensor | None:
    """Torch's symbolic causal mask of a chunk; None at start 0."""
    return causal_lower_right(num_tokens, start + num_tokens) if start else None


def prefill_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, context: PrefillContext, scale: float
) -> torch.Tensor:
    """The operation, with one batch entry per K/V head, broadcast over its query heads.

    Torch 2.11 copies K/V for each query head under the symbolic mask otherwise (4.8 KB a token at 1 KB of K/V). On a CPU the
    broadcast falls off the fused path.
    """
    k, v = (chunk_rows(pages, context, len(q))[:, None] for pages in (keys, values))
    query = q.transpose(0, 1).view(len(k), -1, len(q), q.shape[-1])
    k, v = (part.expand(-1, query.shape[1], -1, -1) for part in (k, v))
    out = functional.scaled_dot_product_attention(
        query, k, v, attn_mask=context.mask, is_causal=context.mask is None, scale=scale
    )
    return out.flatten(0, 1).transpose(0, 1)
