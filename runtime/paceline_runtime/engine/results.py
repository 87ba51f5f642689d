"""What a launched step gave, on its way to the host: copies are started in the launch and waited for when it is collected.

Made and read by the executor; the engine holds handles of steps in flight. It knows nothing of how tokens were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_runtime.engine.transfer import HostCopy
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.scheduler.request import RowResult, StepPlan, StepResult


@dataclass(frozen=True)
class Results:
    """Device results of one forward's rows. `logprobs`: of the chosen tokens, and ids and values of the likeliest ones."""

    tokens: HostCopy
    num_tokens: HostCopy
    num_drafts: HostCopy
    logprobs: tuple[HostCopy, HostCopy, HostCopy] | None

    def rows(self, count: int) -> tuple[RowResult, ...]:
        """Wait for the copies; the first `count` rows."""
        runs, nums, drafted = self.tokens.read(), self.num_tokens.read(), self.num_drafts.read()
        logprobs = [copy.read() for copy in self.logprobs] if self.logprobs else None
        found: list[RowResult] = []
        for row in range(count):
            num = int(nums[row])
            details = None
            if logprobs is not None:
                chosen, ids, values = logprobs
                details = tuple(
                    (float(chosen[row, j]), tuple(ids[row, j].tolist()), tuple(values[row, j].tolist())) for j in range(num)
                )
            found.append(RowResult(tuple(runs[row, :num].tolist()), int(drafted[row]), details))
        return tuple(found)


@dataclass(frozen=True)
class Handle:
    """A launched step: `decode` results by decode row, `prefill` by the prefill rows that draw a token."""

    plan: StepPlan
    decode: Results | None
    prefill: Results | None

    def read(self) -> StepResult:
        """Wait for the step; results in the order of the plan's rows."""
        decode = self.decode.rows(len(self.plan.decode)) if self.decode else ()
        drawn = iter(self.prefill.rows(sum(row.samples for row in self.plan.prefill)) if self.prefill else ())
        prefill = tuple(next(drawn) if row.samples else RowResult(()) for row in self.plan.prefill)
        return StepResult(decode, prefill)


def results_of(logits: torch.Tensor, verdict: Accepted, num_drafts: torch.Tensor, num_logprobs: int | None) -> Results:
    """Start the copies of a verify's results; log probabilities of logits [B, W, V] only when `num_logprobs` asks for them."""
    logprobs = None
    if num_logprobs is not None:
        everything = torch.log_softmax(logits, dim=-1)
        chosen = everything.gather(-1, verdict.run[..., None])[..., 0]
        top = everything.topk(min(max(num_logprobs, 1), everything.shape[-1]), dim=-1)
        logprobs = (HostCopy(chosen), HostCopy(top.indices), HostCopy(top.values))
    return Results(HostCopy(verdict.run), HostCopy(verdict.num_tokens), HostCopy(num_drafts), logprobs)
