"""Window attention of a draft block over its request's ring, in plain torch: gathers the ring and calls torch's attention.

Called by the draft through its choice of kernels, and by kernel tests as the oracle. A ring of R slots holds the context
of position p in slot p mod R; which positions those are follows from the request's length alone, so nothing is ever reset:
what earlier positions, rejected drafts or an earlier request left behind is out of every window, whatever it holds.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def ring_positions(lengths: torch.Tensor, ring_size: int) -> torch.Tensor:
    """The context position each slot of a ring stands for: int64 [B, R], negative where there is none yet.

    lengths: int64 [B], number of context positions of each request; slot s holds the last p < length with p = s mod R.
    """
    last = lengths[:, None] - 1
    return last - (last - torch.arange(ring_size, device=lengths.device)) % ring_size


def window_attention(
    q: torch.Tensor,
    ring_keys: torch.Tensor,
    ring_values: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    block_keys: torch.Tensor,
    block_values: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """Attention of the W rows of each block over context and block, without causality: [B, W, Hq, D].

    Row j of block b stands at position lengths[b] + j and sees the keys less than `window` positions away, so the first row
    sees `window` - 1 context rows and itself. Scores are scaled by 1 / sqrt(D).

    q: [B, W, Hq, D]; ring_keys, ring_values: [num_rows, R, Hkv, D]; rows, lengths: int64 [B]
    block_keys, block_values: [B, W, Hkv, D], never kept: a block's own keys depend on its masks
    """
    width, ring_size = q.shape[1], ring_keys.shape[1]
    positions = ring_positions(lengths, ring_size)
    queries = lengths[:, None] + torch.arange(width, device=q.device)
    near = (positions >= 0)[:, None] & (queries[:, :, None] - positions[:, None] < window)
    block = (queries[:, :, None] - queries[:, None]).abs() < window
    unseen = ~near.any(1)[:, :, None, None]
    keys = torch.cat((ring_keys[rows].masked_fill_(unseen, 0), block_keys), 1)
    values = torch.cat((ring_values[rows].masked_fill_(unseen, 0), block_values), 1)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=torch.cat((near, block), -1)[:, None],
        enable_gqa=True,
    )
    return out.transpose(1, 2)
