"""The selector walk of DFlash 2, in plain torch, greedy and sampled rows together.

Called by the draft through its choice of kernels, and by kernel tests as the oracle. Only the temperature enters the
draft's distribution; every other sampling parameter acts on the target's side of the verify.
"""

from __future__ import annotations

import torch

from paceline_kernels.counter_random import PROPOSAL, gumbel


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
    """Walk K slots of C candidates: (tokens int64 [B, K], q [B, K, C] over the candidates, at least float32).

    Slot j scores `unary + <predecessor[previous token] * hidden[j], successor[candidate]>`. A greedy row (temperature 0)
    takes the argmax, the first of equals; a sampled row draws from q = softmax(score / temperature), by Gumbel noise keyed
    with the candidate's id, so the order of candidates does not matter. A candidate of q = 0 is never drawn.

    unary: [B, K, C]; candidates: int64 [B, K, C]; hidden: [B, K, r]; predecessor, successor: [V, r]
    anchors, seeds: int64 [B]; temperature: float [B]; positions: int64 [B, K], where each drafted token would stand
    """
    sampled = temperature > 0
    divisor = torch.where(sampled, temperature, 1.0)[:, None]
    tokens, q = [], []
    previous = anchors
    for slot in range(unary.shape[1]):
        ids = candidates[:, slot]
        scores = pair_scores(unary[:, slot], hidden[:, slot], predecessor[previous], successor[ids])
        # The maximum is taken off before the division: the smallest temperatures would overflow after it.
        probs = torch.softmax((scores - scores.amax(-1, keepdim=True)) / divisor, -1)
        noise = gumbel(seeds[:, None], positions[:, slot, None], PROPOSAL, ids)
        drawn = (probs.to(torch.float64).log() + noise).argmax(-1)
        index = torch.where(sampled, drawn, scores.argmax(-1))
        previous = ids.gather(-1, index[:, None])[:, 0]
        tokens.append(previous)
        q.append(probs)
    return torch.stack(tokens, 1), torch.stack(q, 1)


def pair_scores(unary: torch.Tensor, hidden: torch.Tensor, predecessor: torch.Tensor, successor: torch.Tensor) -> torch.Tensor:
    """Scores [B, C] of one slot's candidates after a known token, in at least float32.

    unary: [B, C]; hidden, predecessor: [B, r]; successor: [B, C, r]
    """
    dtype = torch.promote_types(unary.dtype, torch.float32)
    context = predecessor.to(dtype) * hidden.to(dtype)
    return unary.to(dtype) + (successor.to(dtype) @ context[:, :, None])[:, :, 0]
