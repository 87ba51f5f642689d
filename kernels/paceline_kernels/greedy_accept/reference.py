"""What a verify commits of greedy requests, in plain torch: the longest prefix of the drafts that matches the argmax.

The face calls it. It refuses to know whose drafts they are.
"""

from __future__ import annotations

import torch


def greedy_accept(logits: torch.Tensor, drafts: torch.Tensor, num_verified: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs int64 [B, W] of B requests and how many tokens of each count, int64 [B]; W = 1 + k.

    logits [B, W, V]: row j decides what follows the first j of the drafts int64 [B, k], of which the first `num_verified`
    int64 [B] were verified.
    """
    likeliest = logits.argmax(-1)
    steps = torch.arange(drafts.shape[1], device=drafts.device)
    accepted = (drafts == likeliest[:, :-1]) & (steps < num_verified[:, None])
    num_accepted = accepted.to(torch.int64).cumprod(1).sum(1)
    last = likeliest.gather(1, num_accepted[:, None])
    run = torch.cat([drafts, last], dim=1).scatter(1, num_accepted[:, None], last)
    return run, num_accepted + 1
