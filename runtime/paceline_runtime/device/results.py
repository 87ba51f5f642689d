"""What a launched step gave, and its way to the host: copies are started in the launch and waited for when it is collected.

The executor makes and reads it; the engine holds handles of steps in flight. It knows nothing of how tokens were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_runtime.device.transfer import HostCopy
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.step import RowResult, StepPlan, StepResult, Variant


@dataclass(frozen=True)
class Outcome:
    """What B rows gave, on the device.

    report int64 [B, 2 + W]: how many tokens were committed, how many drafts were looked at, the run, in one tensor since each
    copy to the host takes a GPU some 3 us; logprobs: of the run's tokens [B, W], and ids and values [B, W, N] of the likeliest
    ones, None where nobody asks.
    """

    report: torch.Tensor
    logprobs: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None


def outcome_of(logits: torch.Tensor, accepted: Accepted, num_verified: torch.Tensor, variant: Variant) -> Outcome:
    """A verify's outcome; log probabilities of logits [B, W, V] only where some row asks for them."""
    report = torch.cat((accepted.num_tokens[:, None], num_verified[:, None], accepted.run), dim=1)
    if variant.num_logprobs is None:
        return Outcome(report, None)
    everything = torch.log_softmax(logits, dim=-1)
    chosen = everything.gather(-1, accepted.run[..., None])[..., 0]
    top = everything.topk(min(max(variant.num_logprobs, 1), everything.shape[-1]), dim=-1)
    return Outcome(report, (chosen, top.indices, top.values))


class Results:
    """An outcome on its way to the host."""

    def __init__(self, outcome: Outcome) -> None:
        self._report = HostCopy(outcome.report)
        self._logprobs = tuple(map(HostCopy, outcome.logprobs or ()))

    def rows(self, count: int) -> tuple[RowResult, ...]:
        """Wait for the copies; the first `count` rows."""
        report, logprobs = self._report.read().tolist(), [copy.read() for copy in self._logprobs]
        found: list[RowResult] = []
        for row, (num, num_verified, *run) in enumerate(report[:count]):
            details = None
            if logprobs:
                chosen, ids, values = logprobs
                details = tuple(
                    (float(chosen[row, j]), tuple(ids[row, j].tolist()), tuple(values[row, j].tolist())) for j in range(num)
                )
            found.append(RowResult(tuple(run[:num]), num_verified, details))
        return tuple(found)


@dataclass(frozen=True)
class Handle:
    """A launched step: `decode` results by decode row, `prefill` by the prefill rows that draw a token.

    `is_steady`: whether the step takes the time that such steps take, or loads and captures what later ones find.
    """

    plan: StepPlan
    decode: Results | None
    prefill: Results | None
    is_steady: bool = True

    def read(self) -> StepResult:
        """Wait for the step; results in the order of the plan's rows."""
        decode = self.decode.rows(len(self.plan.decode)) if self.decode else ()
        drawn = iter(self.prefill.rows(sum(row.samples for row in self.plan.prefill)) if self.prefill else ())
        prefill = tuple(next(drawn) if row.samples else RowResult(()) for row in self.plan.prefill)
        return StepResult(decode, prefill)
