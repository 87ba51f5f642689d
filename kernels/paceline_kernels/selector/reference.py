"""The selector walk of DFlash 2, in plain torch, draft after draft. The face calls it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_kernels.counter_random.reference import PROPOSAL, gumbel


@dataclass(frozen=True)
class Candidates:
    """What the target's head makes of B blocks of K drafts: ids int64 and logits [B, K, C], selector input [B, K, r]."""

    ids: torch.Tensor
    unary: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class Codebooks:
    """What the selector learned of pairs of tokens: [V, r] each."""

    predecessor: torch.Tensor
    successor: torch.Tensor


@dataclass(frozen=True)
class Draws:
    """How B requests draw: temperature float [B], seeds int64 [B], positions int64 [B, K] where each draft would stand."""

    temperature: torch.Tensor
    seeds: torch.Tensor
    positions: torch.Tensor


def select_path(
    candidates: Candidates, codebooks: Codebooks, anchors: torch.Tensor, draws: Draws
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operation; q in float32, or float64 where the logits are."""
    sampled = draws.temperature > 0
    divisor = torch.where(sampled, draws.temperature, 1.0)[:, None]
    tokens, q = [], []
    previous = anchors
    for draft in range(candidates.ids.shape[1]):
        ids = candidates.ids[:, draft]
        pair = codebooks.predecessor[previous], codebooks.successor[ids]
        scores = pair_scores(candidates.unary[:, draft], candidates.hidden[:, draft], *pair)
        # The maximum comes off before the division: with the smallest temperatures the quotients would overflow.
        probs = torch.softmax((scores - scores.amax(-1, keepdim=True)) / divisor, -1)
        noise = gumbel(draws.seeds[:, None], draws.positions[:, draft, None], PROPOSAL, ids)
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
