"""A shadow of every context row that a draft's proposer keeps, against which each restored window is held."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import ForwardBatch, VerifyBatch
from paceline_runtime.engine.core import Engine
from paceline_runtime.models.base import FeatureSink
from paceline_runtime.speculative.dflash.proposer import DFlashProposer


@dataclass
class WindowShadow:
    """What was written to each cache slot last: the token, its context row, and its keys and values where a ring took them.

    `num_restored` counts the restores of so many cached tokens, each checked row by row when it happened.
    """

    engine: Engine
    written: dict[int, tuple[int, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]] = field(default_factory=dict)
    num_restored: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.proposer: DFlashProposer = self.engine.executor.proposer
        self._on_rows, self._on_restore = self.proposer.on_rows, self.proposer.on_restore
        self.proposer.on_rows, self.proposer.on_restore = self._rows, self._restore

    def _rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        self._on_rows(batch, sink, hidden)
        plane = self.proposer.plane.flatten(0, 1)
        for index in batch.active.nonzero()[:, 0].tolist():
            slot = int(batch.cells[index])
            self.written[slot] = int(batch.ids[index]), plane[slot].clone(), self._in_ring(batch, index)

    def _in_ring(self, batch: ForwardBatch, index: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        position = int(batch.positions[index])
        if isinstance(batch, VerifyBatch):
            return self._ring_rows(int(batch.seats[index // batch.width]), position)
        owner = next(n for n, chunk in enumerate(batch.chunks) if index < chunk.offset + chunk.num_tokens)
        chunk = batch.chunks[owner]
        is_kept = index >= chunk.offset + chunk.num_tokens - self.proposer.rings.reach
        return self._ring_rows(int(batch.seats[owner]), position) if is_kept else None

    def _ring_rows(self, row: int, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        rings = self.proposer.rings
        return rings.keys[:, row, position % rings.size].clone(), rings.values[:, row, position % rings.size].clone()

    def _restore(self, row: int, pages: torch.Tensor, num_tokens: int) -> None:
        self._on_restore(row, pages, num_tokens)
        for position in range(max(0, num_tokens - self.proposer.rings.reach), num_tokens):
            slot = int(pages[position // PAGE_TOKENS]) * PAGE_TOKENS + position % PAGE_TOKENS
            token, context, kept = self.written[slot]
            assert token == int(self.engine.executor.seats.history[row, position]), "a row of another text was restored"
            assert torch.equal(self.proposer.plane.flatten(0, 1)[slot], context), "a page was changed by other hands"
            for ours, theirs in zip(self._ring_rows(row, position), kept or (), strict=kept is not None):
                assert torch.equal(ours, theirs), f"the ring's row of position {position} is another"
        self.num_restored[num_tokens] += 1
