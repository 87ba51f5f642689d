"""Window attention of a draft block over its request's ring, in plain torch: it gathers the ring and calls torch's attention.

The face calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Rings:
    """The rings of all seats, and of B blocks the seats and the context's lengths.

    keys, values: [num_seats, R, Hkv, D]; seats, lengths: int64 [B]
    """

    keys: torch.Tensor
    values: torch.Tensor
    seats: torch.Tensor
    lengths: torch.Tensor


def ring_positions(lengths: torch.Tensor, ring_size: int) -> torch.Tensor:
    """The context position that each entry of a ring stands for: int64 [B, R], negative where there is none yet.

    lengths: int64 [B], number of context positions of each request; entry e holds the last p < length with p = e mod R.
    """
    last = lengths[:, None] - 1
    return last - (last - torch.arange(ring_size, device=lengths.device)) % ring_size


def window_attention(
    q: torch.Tensor, rings: Rings, block_keys: torch.Tensor, block_values: torch.Tensor, window: int
) -> torch.Tensor:
    """The operation, over keys and values put together; those that no row sees are zeroed, since they may be NaN."""
    width, ring_size, seats = q.shape[1], rings.keys.shape[1], rings.seats
    positions = ring_positions(rings.lengths, ring_size)
    queries = rings.lengths[:, None] + torch.arange(width, device=q.device)
    near = (positions >= 0)[:, None] & (queries[:, :, None] - positions[:, None] < window)
    block = (queries[:, :, None] - queries[:, None]).abs() < window
    unseen = ~near.any(1)[:, :, None, None]
    keys = torch.cat((rings.keys[seats].masked_fill_(unseen, 0), block_keys), 1)
    values = torch.cat((rings.values[seats].masked_fill_(unseen, 0), block_values), 1)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=torch.cat((near, block), -1)[:, None],
        enable_gqa=True,
    )
    return out.transpose(1, 2)
