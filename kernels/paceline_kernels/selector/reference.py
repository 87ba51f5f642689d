"""The selector walk of DFlash 2, in plain torch, draft after draft. The face calls it."""

from __future__ import annotations

import torch

from paceline_kernels.counter_random.reference import PROPOSAL, gumbel


def select_path(
    unary: torch.Tensor,
    candidates: torch.Tensor,
    hidden: torch.Tensor,
    predecessor: torch.Tensor,
    successor: torch.Tensor,
    anchors: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operation; q in float32, or float64 where unary is."""
    sampled = temperature > 0
    divisor = torch.where(sampled, temperature, 1.0)[:, None]
    tokens, q = [], []
    previous = anchors
    for draft in range(unary.shape[1]):
        ids = candidates[:, draft]
        scores = pair_scores(unary[:, draft], hidden[:, draft], predecessor[previous], successor[ids])
        # The maximum comes off before the division: with the smallest temperatures the quotients would overflow.
        probs = torch.softmax((scores - scores.amax(-1, keepdim=True)) / divisor, -1)
        noise = gumbel(seeds[:, None], positions[:, draft, None], PROPOSAL, ids)
        drawn = (probs.to(torch.float64).log() + noise).argmax(-1)
        index = torch.where(sampled, drawn, scores.argmax(-1))
        previous = ids.gather(-1, index[:, None])[:, 0]
        tokens.append(previous)
        q.append(probs)
    return torch.stack(tokens, 1), torch.stack(q, 1)


def pair_scores(unary: torch.Tensor, hidden: torch.Tensor, predecessor: torch.Tensor, successor: torch.Tensor) -> torch.Tensor:
    """Scores [B, C] of one draft's candidates after a known token, in at least float32.

    unary: [B, C]; hidden, predecessor: [B, r]; successor: [B, C, r]
    """
    dtype = torch.promote_types(unary.dtype, torch.float32)
    context = predecessor.to(dtype) * hidden.to(dtype)
    return unary.to(dtype) + (successor.to(dtype) @ context[:, :, None])[:, :, 0]
