"""What a verify commits of greedy requests: the drafts that are the target's own choice, and the choice after them.

The judge of a verify calls it. It refuses to know whose drafts they are.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.greedy_accept import reference

__all__ = ["greedy_accept"]


def greedy_accept(
    logits: torch.Tensor, drafts: torch.Tensor, num_verified: torch.Tensor, *, backend: Backend = Backend.AUTO
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs int64 [B, W] of B requests and how many tokens of each count, int64 [B]; W = 1 + k.

    logits [B, W, V]: row j decides what follows the first j of the drafts int64 [B, k], of which the first `num_verified`
    int64 [B] were verified. A run is the accepted drafts, then the target's token. Of equal logits the lower id wins.
    """
    if runs_kernel(backend, logits.device, logits.dtype):
        from paceline_kernels.greedy_accept import kernel

        return kernel.greedy_accept(logits, drafts, num_verified)
    return reference.greedy_accept(logits, drafts, num_verified)
