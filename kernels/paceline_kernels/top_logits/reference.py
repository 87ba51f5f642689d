"""The likeliest ids of rows of logits, in plain torch: ties are broken by id, so the answer does not depend on who computes it.

The face calls it. It refuses to know what the ids mean.
"""

from __future__ import annotations

import torch


def top_logits(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [N, count] and ids int64 [N, count] of the largest logits [N, V] of each row, largest first, ties by lower id."""
    if logits.dtype == torch.float64:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        return values[..., :count], ids[..., :count]
    _, ids = torch.topk(_ordered_keys(logits), count, dim=-1)
    return logits.gather(-1, ids), ids


def _ordered_keys(logits: torch.Tensor) -> torch.Tensor:
    """int64 keys that order as (logit descending, id ascending): `torch.topk` leaves the order of ties open."""
    bits = logits.to(torch.float32).view(torch.int32).to(torch.int64)
    ordered = torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    vocab = logits.shape[-1]
    return (ordered << 32) + torch.arange(vocab - 1, -1, -1, device=logits.device)
