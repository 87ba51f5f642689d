"""Synthetic acceptance: a step of a random target commits as many tokens as a trained pair would.

Random drafts are almost never accepted, so a bench of random weights that left acceptance alone would measure the right step
and print a wrong speed. All of a step's device work is done, verify included; only its verdict is replaced, also where a
proposer had fewer drafts to offer, and the ids that are committed mean nothing.
"""

from __future__ import annotations

import time

import torch

from paceline_runtime.bench.shapes import Shape
from paceline_runtime.engine.executor import Executor
from paceline_runtime.engine.results import Handle
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.scheduler.request import StepPlan
from paceline_runtime.speculative.base import Proposal

CONDITIONAL_RATE = 0.85
"""Chance of a draft whose predecessors were accepted, where nothing is published: DFlash 2's card has 0.88 to 0.86."""


def assumed_tokens_per_step(shape: Shape, algorithm: str, num_steps: int) -> tuple[float, str]:
    """Tokens per step, and where the figure comes from."""
    if num_steps == 0:
        return 1.0, "exact"
    if (algorithm, num_steps) in shape.tokens_per_step:
        return shape.tokens_per_step[algorithm, num_steps], "published"
    return sum(CONDITIONAL_RATE**position for position in range(num_steps + 1)), f"{CONDITIONAL_RATE} a draft"


class SyntheticAcceptance(Executor):
    """An executor of the same parts that accepts `tokens_per_step` - 1 drafts on average, as evenly as whole steps allow.

    `launch_s` holds the seconds that the host took for each launch.
    """

    def __init__(self, executor: Executor, tokens_per_step: float) -> None:
        super().__init__(executor.target, executor.memory, executor.rows, executor.proposer)
        assert 1.0 <= tokens_per_step <= 1 + self.num_steps, "a step commits 1 to 1 + k tokens"
        self._mean_accepted = tokens_per_step - 1.0
        self._num_verifies = 0
        self.launch_s: list[float] = []

    def launch(self, plan: StepPlan) -> Handle:
        """The real launch, timed."""
        begin = time.perf_counter()
        handle = super().launch(plan)
        self.launch_s.append(time.perf_counter() - begin)
        return handle

    def _accept(
        self,
        logits: torch.Tensor,
        proposal: Proposal,
        num_drafts: torch.Tensor,
        rows: torch.Tensor,
        lengths: torch.Tensor,
        params: RowParams,
    ) -> tuple[Accepted, torch.Tensor]:
        verdict, adjusted = super()._accept(logits, proposal, num_drafts, rows, lengths, params)
        if not proposal.tokens.shape[1]:
            return verdict, adjusted
        accepted = torch.full_like(num_drafts, self._next_accepted())
        return Accepted(torch.cat([proposal.tokens, verdict.run[:, -1:]], dim=1), accepted + 1), adjusted

    def _next_accepted(self) -> int:
        before, self._num_verifies = self._num_verifies, self._num_verifies + 1
        return int(self._num_verifies * self._mean_accepted) - int(before * self._mean_accepted)
