"""What the device's programs run over: the loaded models, the caches, and the buffers by seat.

The executor puts them together whenever caches are allocated. It knows the target and the proposer by their contracts only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_runtime.batch import ForwardBatch
from paceline_runtime.device.seats import SeatBuffers
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.sampling.judge import Accept
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.step import Variant


@dataclass(frozen=True)
class Parts:
    """One target with its memory, the proposer beside it, and what decides which drafts are accepted."""

    target: TargetModel
    memory: TargetMemory
    seats: SeatBuffers
    proposer: Proposer | None
    accept: Accept

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Hidden rows [N, H] for the head; the proposer is told of them."""
        sink = self.proposer.sink(batch) if self.proposer else None
        hidden = self.target.forward(batch, self.memory, sink)
        if self.proposer is not None:
            self.proposer.on_rows(batch, sink, hidden)
        return hidden

    def logits(self, hidden: torch.Tensor, variant: Variant) -> torch.Tensor:
        """Logits [M, V] of hidden rows, in at least float32 where more than their order is read."""
        logits = self.target.logits(hidden)
        return logits if variant.is_plain or logits.dtype == torch.float64 else logits.to(torch.float32)
