"""Synthetic acceptance: a step of a random target commits as many tokens as a trained pair would.

Random drafts are almost never accepted, so a bench of random weights that left acceptance alone would measure the right step
and print a wrong speed. A step does all of its device work, verify included; only its verdict is replaced, also where a
proposer had fewer drafts to offer, and the ids that are committed mean nothing.
"""

from __future__ import annotations

import torch

from paceline_runtime.bench.shapes import Shape
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.sampling.judge import Texts, judge
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.speculative.base import Proposal

CONDITIONAL_RATE = 0.85
"""Chance of a draft whose predecessors were accepted, where nothing is published: DFlash 2's card has 0.88 to 0.86."""


def assumed_tokens_per_step(shape: Shape, algorithm: str, num_drafts: int) -> tuple[float, str]:
    """Tokens per step, and where the figure comes from."""
    if num_drafts == 0:
        return 1.0, "exact"
    if (algorithm, num_drafts) in shape.tokens_per_step:
        return shape.tokens_per_step[algorithm, num_drafts], "published"
    return sum(CONDITIONAL_RATE**position for position in range(num_drafts + 1)), f"{CONDITIONAL_RATE} a draft"


class SyntheticAcceptance:
    """An `Accept` that accepts `tokens_per_step` - 1 drafts on average, as evenly as whole steps allow.

    Steps are counted on the device, so that a captured step counts too.
    """

    def __init__(self, tokens_per_step: float, device: torch.device) -> None:
        self._mean_accepted = tokens_per_step - 1.0
        self._num_verifies = torch.zeros((), dtype=torch.float64, device=device)

    def __call__(
        self, logits: torch.Tensor, proposal: Proposal, num_verified: torch.Tensor, texts: Texts, params: RowParams
    ) -> Accepted:
        """All of the real work; of a verify with drafts only its verdict is replaced."""
        real = judge(logits, proposal, num_verified, texts, params)
        num_drafts = proposal.tokens.shape[1]
        if not num_drafts:
            return real
        assert 0.0 <= self._mean_accepted <= num_drafts, "a step commits 1 to 1 + k tokens"
        accepted = self._next_accepted().to(torch.int64).expand_as(num_verified)
        return Accepted(torch.cat([proposal.tokens, real.run[:, -1:]], dim=1), accepted + 1)

    def _next_accepted(self) -> torch.Tensor:
        before = (self._num_verifies * self._mean_accepted).floor()
        self._num_verifies += 1
        return (self._num_verifies * self._mean_accepted).floor() - before
