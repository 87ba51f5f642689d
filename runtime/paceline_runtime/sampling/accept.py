"""Accept or resample: which drafts of a block are kept and which token follows, so that the output is the target's own.

Greedy rows keep the longest prefix that matches the argmax. Sampled rows accept draft d with probability min(1, p(d)/q(d))
and on the first rejection draw from max(0, p - q) (Leviathan et al. 2023, arXiv 2211.17192). p and q are lists of few ids,
never dense over the vocabulary. A q that cannot be a distribution (NaN, or another total than 1) is not trusted: its draft is
rejected and the token drawn from p, which is exact whatever the draft was. `judge` calls it inside a launch; it reads nothing
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from paceline_kernels.counter_random import ACCEPT, DRAW, gumbel, uniform
from paceline_runtime.sampling.distribution import Distribution
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.speculative.base import Proposal

_TOTAL_TOLERANCE = 1e-3
"""How far the total of q may be from 1: q may be kept in bf16."""


@dataclass(frozen=True)
class Accepted:
    """What a verify commits per row: run int64 [B, W] (accepted drafts, then the target's token), its length int64 [B]."""

    run: torch.Tensor
    num_tokens: torch.Tensor

    @classmethod
    def of(cls, parts: Sequence[Accepted]) -> Accepted:
        """What was accepted of the parts of a batch, as one."""
        return cls(torch.cat([part.run for part in parts]), torch.cat([part.num_tokens for part in parts]))


def accept_drafts(
    greedy_tokens: torch.Tensor,
    dist: Distribution,
    proposal: Proposal,
    num_verified: torch.Tensor,
    lengths: torch.Tensor,
    params: RowParams,
) -> Accepted:
    """Verify B blocks of W = 1 + k rows.

    greedy_tokens int64 [B, W]: argmax of each row; dist: p of each row; where all are greedy, see `greedy_accept`.
    num_verified int64 [B]: leading drafts that were verified; lengths int64 [B]: position of the pending token, so that row j
    decides the token at position lengths + 1 + j.
    """
    drafts = proposal.tokens
    width = greedy_tokens.shape[1]
    sampled = _accept_sampled(dist, proposal, lengths, params)
    accepted = torch.where(params.greedy[:, None], drafts == greedy_tokens[:, : width - 1], sampled)
    index = torch.arange(width - 1, device=drafts.device)
    accepted = accepted & (index < num_verified[:, None])
    num_accepted = accepted.to(torch.int64).cumprod(1).sum(1)
    drawn = _draw_last(dist, proposal, num_accepted, num_verified, lengths, params)
    last = torch.where(params.greedy[:, None], greedy_tokens.gather(1, num_accepted[:, None]), drawn[:, None])
    run = torch.cat([drafts, last], dim=1).scatter(1, num_accepted[:, None], last)
    return Accepted(run, num_accepted + 1)


def _accept_sampled(dist: Distribution, proposal: Proposal, lengths: torch.Tensor, params: RowParams) -> torch.Tensor:
    drafts = proposal.tokens
    p = _prob_of(dist.ids[:, :-1], dist.probs[:, :-1], drafts)
    positions = lengths[:, None] + 1 + torch.arange(drafts.shape[1], device=drafts.device)
    noise = uniform(params.keys[:, None], positions, ACCEPT)
    if proposal.q is None:
        return noise < p
    assert proposal.candidates is not None
    q = _prob_of(proposal.candidates, proposal.q.to(p.dtype), drafts)
    return (noise * q < p) & _is_trusted(proposal.q)


def _is_trusted(q: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(q).all(-1) & (q >= 0).all(-1) & ((q.sum(-1) - 1.0).abs() < _TOTAL_TOLERANCE)


def _prob_of(ids: torch.Tensor, probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return (probs * (ids == tokens[..., None])).sum(-1)


def _draw_last(
    dist: Distribution,
    proposal: Proposal,
    num_accepted: torch.Tensor,
    num_verified: torch.Tensor,
    lengths: torch.Tensor,
    params: RowParams,
) -> torch.Tensor:
    """The token after the accepted drafts [B]: from max(0, p - q) after a rejection, from p after a full accept."""
    index = num_accepted[:, None, None].expand(-1, 1, dist.ids.shape[-1])
    ids, p = dist.ids.gather(1, index)[:, 0], dist.probs.gather(1, index)[:, 0]
    if proposal.tokens.shape[1]:
        rejected = num_accepted < num_verified
        q = _q_at(ids, proposal, num_accepted, is_whole=dist.is_whole)
        residual = (p - q.to(p.dtype)).clamp(min=0.0)
        usable = rejected & (residual.sum(-1) > 0)  # NaN compares false
        p = torch.where(usable[:, None], residual, p)
    noise = gumbel(params.keys[:, None], (lengths + 1 + num_accepted)[:, None], DRAW, ids)
    best = (p.log() + noise).argmax(-1, keepdim=True)
    return ids.gather(1, best)[:, 0]


def _q_at(ids: torch.Tensor, proposal: Proposal, num_accepted: torch.Tensor, *, is_whole: bool) -> torch.Tensor:
    """q [B, K] of the first rejected draft at the listed ids."""
    rejected = num_accepted.clamp(max=proposal.tokens.shape[1] - 1)[:, None]
    if proposal.q is None:
        return (ids == proposal.tokens.gather(1, rejected)).to(torch.float64)
    assert proposal.candidates is not None
    index = rejected[:, :, None].expand(-1, 1, proposal.q.shape[-1])
    candidates, q = proposal.candidates.gather(1, index)[:, 0], proposal.q.gather(1, index)[:, 0]
    q = torch.where(_is_trusted(q)[:, None], q, 0.0)
    if is_whole:  # a comparison of every id with every candidate would take 80 bytes an id
        return torch.zeros_like(ids, dtype=q.dtype).scatter_add_(1, candidates, q).gather(1, ids)
    return ((ids[:, :, None] == candidates[:, None, :]) * q[:, None, :]).sum(-1)
