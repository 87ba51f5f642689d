"""The cells of a sweep: decode steps of one algorithm, depth, batch and context, and the figures of one.

`step` calls it. Every cell has an engine with room for its requests and no more, so that a cell that does not fit is marked
and takes none of the others with it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline_runtime.bench.acceptance import SyntheticAcceptance
from paceline_runtime.bench.drive import (
    HOST_STEPS,
    TRACED_STEPS,
    WARM_UP_STEPS,
    Sizes,
    StepTimes,
    decode_times,
    make_engine,
    released,
)
from paceline_runtime.bench.limits import Limits
from paceline_runtime.bench.subjects import Subject
from paceline_runtime.bench.traffic import StepTraffic, step_traffic
from paceline_runtime.engine.memory import SizeError
from paceline_runtime.speculative.base import Proposer

_SPARE_STEPS = 4


@dataclass(frozen=True)
class Run:
    """How every cell is measured: steps that count, prompt tokens that a step prefills, and whether that is pretended."""

    num_steps: int
    prefill_chunk: int
    pretends: bool = False


@dataclass(frozen=True)
class Cell:
    """What decodes: `num_requests` from prompts of `context_tokens`."""

    algorithm: str
    num_drafts: int
    num_requests: int
    context_tokens: int

    def max_model_len(self, run: Run) -> int:
        """Room for one request: while the last prompts are prefilled, the first ones decode already."""
        prefill_steps = 1 if run.pretends else -(-self.num_requests * self.context_tokens // run.prefill_chunk)
        steps = prefill_steps + WARM_UP_STEPS + run.num_steps + HOST_STEPS + TRACED_STEPS + _SPARE_STEPS
        return self.context_tokens + steps * (1 + self.num_drafts)

    def __str__(self) -> str:
        drafts = f" of {self.num_drafts} drafts" if self.num_drafts else ""
        return f"{self.algorithm}{drafts}, {self.num_requests} requests, contexts of {self.context_tokens}"


@dataclass(frozen=True)
class Unfit:
    """A cell that this device has no memory for."""

    cell: Cell
    reason: str


@dataclass(frozen=True)
class Acceptance:
    """Tokens that a step commits on average, made up, and where the figure comes from."""

    tokens_per_step: float
    source: str


@dataclass(frozen=True)
class Decode:
    """The figures of a cell."""

    cell: Cell
    acceptance: Acceptance
    times: StepTimes
    traffic: StepTraffic

    @property
    def tokens_per_s(self) -> float:
        """Of all requests together, at the assumed acceptance."""
        return self.cell.num_requests * self.acceptance.tokens_per_step / self.times.step_s

    def limit_s(self, bytes_per_s: float) -> float:
        """The least time in which the step's bytes can move."""
        return self.traffic.total_bytes / bytes_per_s

    def to_dict(self, limits: Limits) -> dict[str, Any]:
        """For the JSON, with the limits it stands beside; what a CPU cannot tell is null."""
        cell, times, trace = self.cell, self.times, self.times.trace
        copy_s, read_s = self.limit_s(limits.copy_bytes_per_s), self.limit_s(limits.read_bytes_per_s)
        return {
            "algorithm": cell.algorithm,
            "num_steps": cell.num_drafts,
            "num_requests": cell.num_requests,
            "context_tokens": cell.context_tokens,
            "mean_context_tokens": times.context_tokens,
            "step_s": times.step_s,
            "launch_s": times.launch_s,
            "host_s": times.host_s,
            "device_busy_s": trace.busy_s if trace else None,
            "idle_share": trace.idle_share if trace else None,
            "num_kernels": trace.num_kernels if trace else None,
            "kernels": [asdict(kernel) for kernel in trace.kernels] if trace else None,
            "tokens_per_step": self.acceptance.tokens_per_step,
            "tokens_per_step_from": self.acceptance.source,
            "tokens_per_s": self.tokens_per_s,
            "traffic": self.traffic.to_dict(),
            "limit_copy_s": copy_s,
            "limit_read_s": read_s,
            "share_of_limit": copy_s / times.step_s,
        }


def measure(one: Subject, proposer: Proposer | None, cell: Cell, acceptance: Acceptance, run: Run) -> Decode | Unfit:
    """Figures of a cell. `proposer` drafts as many tokens as the cell says, and is free again afterwards."""
    try:
        # Prompts come at once: by shares, requests that decode would reach their ends while the last prompts wait.
        sizes = Sizes(
            cell.num_requests,
            cell.max_model_len(run),
            run.prefill_chunk,
            decode_prefill_tokens=run.prefill_chunk,
            pretends=run.pretends,
        )
        engine = make_engine(one, proposer, sizes, SyntheticAcceptance(acceptance.tokens_per_step, one.target.device))
        with released(engine):
            times = decode_times(engine, cell.num_requests, cell.context_tokens, run.num_steps)
            traffic = step_traffic(one.shape.text, one.target, proposer, cell.num_requests, round(times.context_tokens))
    except (SizeError, torch.OutOfMemoryError) as error:
        return Unfit(cell, str(error).partition("\n")[0])
    return Decode(cell, acceptance, times, traffic)
