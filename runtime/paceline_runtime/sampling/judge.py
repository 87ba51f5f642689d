"""From the logits of a verify to what is accepted, a few requests at a time.

The device's programs call it inside a launch, and it reads nothing back. Penalties, filters and sums take many copies of the
logits, so they are made of at most `VERIFY_ROWS_AT_ONCE` rows at once; the memory plan counts with that number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from paceline_compat.memory.parts import VERIFY_ROWS_AT_ONCE
from paceline_kernels.greedy_accept import greedy_accept
from paceline_runtime.sampling.accept import Accepted, accept_drafts
from paceline_runtime.sampling.adjust import adjust_logits
from paceline_runtime.sampling.distribution import distribution
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.speculative.base import Proposal


@dataclass(frozen=True)
class Texts:
    """The committed texts of B requests.

    history int64 [S, L], ids by seat; seats int64 [B]; lengths int64 [B], position of each one's pending token, its last
    """

    history: torch.Tensor
    seats: torch.Tensor
    lengths: torch.Tensor

    def part(self, start: int, end: int) -> Texts:
        """The requests from `start` to before `end`."""
        return Texts(self.history, self.seats[start:end], self.lengths[start:end])


class Accept(Protocol):
    """Decides what a verify commits. `judge`, or what a measurement or a test puts in its place."""

    def __call__(
        self, logits: torch.Tensor, proposal: Proposal, num_verified: torch.Tensor, texts: Texts, params: RowParams
    ) -> Accepted:
        """What is accepted of each of B requests; penalties and bias are put into `logits` [B, W, V] in place.

        `num_verified` int64 [B] counts the leading drafts that were verified.
        """
        ...


def judge(logits: torch.Tensor, proposal: Proposal, num_verified: torch.Tensor, texts: Texts, params: RowParams) -> Accepted:
    """The `Accept` that keeps the target's own distribution."""
    num_requests, num_at_once = len(texts.seats), max(1, VERIFY_ROWS_AT_ONCE // logits.shape[1])
    if (params.variant.adjusts or params.variant.is_sampled) and num_requests > num_at_once:
        parts = [(start, min(start + num_at_once, num_requests)) for start in range(0, num_requests, num_at_once)]
        return Accepted.of(
            [judge(logits[a:b], proposal.part(a, b), num_verified[a:b], texts.part(a, b), params.part(a, b)) for a, b in parts]
        )
    if params.variant.adjusts:
        history = texts.history[texts.seats] if params.variant.has_penalties else texts.history[:0]
        logits.copy_(adjust_logits(logits, params, history, texts.lengths, proposal.tokens))
    if not params.variant.is_sampled:
        return Accepted(*greedy_accept(logits, proposal.tokens, num_verified))
    return accept_drafts(logits.argmax(-1), distribution(logits, params), proposal, num_verified, texts.lengths, params)
