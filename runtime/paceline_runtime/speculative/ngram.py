"""Prompt lookup: the continuation of the last place where the text's recent tokens stood before. It needs no checkpoint.

A `Proposer` without state of its own: it searches the committed ids that the executor keeps on the device. Source of the
idea: Saxena 2023 (prompt lookup decoding).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_compat.memory.layout import Buffer
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.models.base import FeatureSink
from paceline_runtime.speculative.base import DraftInputs, Proposal


class NgramProposer:
    """Drafts what followed the latest occurrence of the longest matching suffix of `min_match` to `max_match` tokens."""

    name = "ngram"
    kept_row_bytes = 0
    buffers: tuple[Buffer, ...] = ()

    def __init__(self, num_drafts: int, *, min_match: int = 2, max_match: int = 4) -> None:
        self.num_drafts = num_drafts
        self._min_match = min_match
        self._max_match = max_match

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Nothing to take: the ids are enough."""

    def unbind(self) -> None:
        """Nothing to let go of."""

    def sink(self, batch: ForwardBatch) -> FeatureSink | None:
        """No layer is tapped."""
        return None

    def on_rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        """Nothing to keep."""

    def on_restore(self, seat: int, pages: torch.Tensor, num_tokens: int) -> None:
        """Nothing to restore."""

    def on_release(self, seat: int) -> None:
        """Nothing to reset."""

    def propose(self, inputs: DraftInputs) -> Proposal:
        """Draft by lookup; rows without a match verify no draft. A match that runs into the present repeats itself."""
        history = inputs.history[inputs.seats]
        columns = torch.arange(history.shape[1], device=history.device)
        matched = _matched_suffix(history, inputs.lengths, columns, self._max_match)
        matched = matched.masked_fill(columns >= inputs.lengths[:, None], 0)
        best = (matched * history.shape[1] + columns).argmax(1)
        found = matched.gather(1, best[:, None])[:, 0] >= self._min_match
        period = (inputs.lengths - best).clamp(min=1)
        offsets = torch.arange(self.num_drafts, device=history.device) % period[:, None]
        tokens = history.gather(1, (best[:, None] + 1 + offsets).clamp(max=history.shape[1] - 1))
        return Proposal(tokens, num_tokens=torch.where(found, self.num_drafts, 0))

    def memory_bytes(self) -> int:
        """No weights."""
        return 0


def _matched_suffix(history: torch.Tensor, lengths: torch.Tensor, columns: torch.Tensor, longest: int) -> torch.Tensor:
    """How many tokens, up to `longest`, before and at each column equal the last ones of the row: int64 [B, L]."""
    matched = torch.zeros_like(history)
    running = torch.ones_like(history, dtype=torch.bool)
    for back in range(longest):
        tail = history.gather(1, (lengths - back).clamp(min=0)[:, None])
        shifted = history.roll(back, dims=1)
        running = running & (shifted == tail) & (columns >= back) & (lengths >= back)[:, None]
        matched = matched + running
    return matched
