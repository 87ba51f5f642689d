"""Proposers for the laws: any acceptance, any q. They keep to the contract: device tensors only, nothing read back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_compat.memory.layout import Buffer
from paceline_kernels.counter_random import PROPOSAL, uniform
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.models.base import FeatureSink
from paceline_runtime.speculative.base import DraftInputs, Proposal

_PATTERN = 99
"""A purpose of its own for the acceptance pattern: the same for a text in every run."""


class StatelessProposer:
    """The parts of the contract that a proposer without state leaves empty; counts its rows' lives."""

    name = "scripted"
    kept_row_bytes = 0
    buffers: tuple[Buffer, ...] = ()

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self.num_restored = 0
        self.num_restored_with_hit = 0
        self.num_released = 0

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.num_seats = len(tensors["lengths"])

    def unbind(self) -> None:
        del self.num_seats

    def sink(self, batch: ForwardBatch) -> FeatureSink | None:
        return None

    def on_rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        assert hidden.shape[0] == batch.ids.shape[0]

    def on_restore(self, seat: int, pages: torch.Tensor, num_tokens: int) -> None:
        self.num_restored += 1
        self.num_restored_with_hit += num_tokens > 0

    def on_release(self, seat: int) -> None:
        self.num_released += 1

    def memory_bytes(self) -> int:
        return 0


class KnowingProposer(StatelessProposer):
    """Knows each request's plain continuation and drafts a chosen number of right tokens, then wrong ones.

    Requests are told apart by their first token. How many are right is a fixed function of text and position that takes
    every value 0..k. `spread` lists that many candidates with the drafted one at q = 0.5; without it q is a point mass.
    """

    def __init__(self, num_drafts: int, vocab_size: int, *, spread: int = 0) -> None:
        super().__init__(num_drafts)
        self._vocab = vocab_size
        self._spread = spread
        self._texts = torch.zeros((vocab_size, 1), dtype=torch.int64)

    def know(self, texts: dict[int, list[int]]) -> None:
        """First token -> the whole plain text, prompt included."""
        longest = max(len(text) for text in texts.values()) + self.num_drafts + 2
        self._texts = torch.zeros((self._vocab, longest), dtype=torch.int64)
        for first, text in texts.items():
            self._texts[first, : len(text)] = torch.tensor(text)

    def propose(self, inputs: DraftInputs) -> Proposal:
        first = inputs.history[inputs.seats, torch.zeros_like(inputs.seats)]
        slots = torch.arange(self.num_drafts)
        positions = inputs.lengths[:, None] + 1 + slots
        truth = self._texts[first[:, None], positions.clamp(max=self._texts.shape[1] - 1)]
        right = (uniform(first, inputs.lengths, _PATTERN) * (self.num_drafts + 1)).to(torch.int64)
        tokens = torch.where(slots < right[:, None], truth, (truth + 1) % self._vocab)
        if not self._spread:
            return Proposal(tokens)
        others = (tokens[..., None] + torch.arange(self._spread)) % self._vocab
        q = torch.full(others.shape, 0.5 / max(self._spread - 1, 1), dtype=torch.float64)
        q[..., 0] = 0.5 if self._spread > 1 else 1.0
        return Proposal(tokens, others, q)


class FixedProposer(StatelessProposer):
    """Draws every draft from one fixed q over the first ids of the vocabulary, independently of the text."""

    def __init__(self, num_drafts: int, q: torch.Tensor, *, purpose: int = PROPOSAL) -> None:
        super().__init__(num_drafts)
        self._q = q
        self._purpose = purpose

    def propose(self, inputs: DraftInputs) -> Proposal:
        batch, size = len(inputs.seats), len(self._q)
        positions = inputs.lengths[:, None] + 1 + torch.arange(self.num_drafts)
        ids = torch.arange(size).expand(batch, self.num_drafts, size)
        noise = uniform(inputs.seeds[:, None], positions, self._purpose)
        tokens = torch.searchsorted(self._q.cumsum(0), noise).clamp(max=size - 1)
        return Proposal(tokens, ids, self._q.expand(batch, self.num_drafts, size))
