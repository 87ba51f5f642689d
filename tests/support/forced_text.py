"""A known text forced through the verify path, and the experts that were chosen for it: the bfloat16 law's two runs.

The plain run decides a text token by token. The forced run verifies drafts that continue this text for 0..k tokens and then
err, and commits as much of the text as the drafts had right, whatever its own logits say. Both keep the logits of every
position, which can then be compared where they saw the same tokens.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from scripted_proposers import StatelessProposer

from paceline_kernels.counter_random import uniform
from paceline_runtime.batch import ForwardBatch, VerifyBatch
from paceline_runtime.device.executor import Executor
from paceline_runtime.layers.experts import Experts
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.sampling.judge import judge
from paceline_runtime.speculative.base import DraftInputs, Proposal

_PATTERN = 98
"""A purpose of its own: how many drafts of a block are right depends on text and position alone."""

Place = tuple[int, int]
"""A request, named by its first token, and a position of its text."""


@dataclass
class Texts:
    """Whole texts by first token, on a device; `right` says how many drafts of a block continue the text."""

    texts: dict[int, list[int]]
    num_steps: int
    vocab_size: int
    device: torch.device
    table: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        longest = max(map(len, self.texts.values())) + self.num_steps + 2
        table = torch.zeros((self.vocab_size, longest), dtype=torch.int64)
        for first, text in self.texts.items():
            table[first, : len(text)] = torch.tensor(text)
        self.table = table.to(self.device)

    def after(self, first: torch.Tensor, lengths: torch.Tensor, count: int) -> torch.Tensor:
        """The `count` tokens that follow position `lengths` [B]: [B, count]."""
        places = lengths[:, None] + 1 + torch.arange(count, device=self.device)
        return self.table[first[:, None], places.clamp(max=self.table.shape[1] - 1)]

    def right(self, first: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """0..k, int64 [B]."""
        return (uniform(first, lengths, _PATTERN) * (self.num_steps + 1)).to(torch.int64)


class TextProposer(StatelessProposer):
    """Drafts as `Texts` says."""

    def __init__(self, texts: Texts) -> None:
        super().__init__(texts.num_steps)
        self.texts = texts

    def propose(self, inputs: DraftInputs) -> Proposal:
        first = inputs.history[inputs.seats, torch.zeros_like(inputs.seats)]
        truth = self.texts.after(first, inputs.lengths, self.num_drafts)
        slots = torch.arange(self.num_drafts, device=truth.device)
        is_right = slots < self.texts.right(first, inputs.lengths)[:, None]
        return Proposal(torch.where(is_right, truth, (truth + 1) % self.texts.vocab_size))


class Recorder:
    """An `Accept` that keeps the logits of every decided position; with `texts`, it commits those instead of its own choice."""

    def __init__(self, texts: Texts | None = None) -> None:
        self.texts = texts
        self.logits: dict[Place, torch.Tensor] = {}
        self.accepted: list[int] = []

    def __call__(self, logits, proposal, num_verified, texts, params) -> Accepted:
        said = judge(logits, proposal, num_verified, texts, params)
        first = texts.history[texts.seats, 0]
        if self.texts is not None:
            right = torch.minimum(self.texts.right(first, texts.lengths), num_verified)
            said = Accepted(self.texts.after(first, texts.lengths, logits.shape[1]), right + 1)
        live = texts.seats > 0
        self._record(logits[live], first[live], texts.lengths[live], said.num_tokens[live])
        return said

    def _record(self, logits, first, lengths, num_tokens) -> None:
        kept = zip(first.tolist(), lengths.tolist(), num_tokens.tolist(), logits.float().cpu(), strict=True)
        for name, length, count, block in kept:
            self.logits.update({(name, length + 1 + row): block[row] for row in range(count)})
            if len(block) > 1:
                self.accepted.append(count - 1)


class ExpertReplay:
    """Remembers which experts each token of each text went to in one run, and sends it to the same ones in another."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, int, int], torch.Tensor] = {}
        self._places: list[Place] = []
        self.num_replayed = 0

    @contextmanager
    def watch(self, monkeypatch, executor: Executor, *, replay: bool):
        """While inside, routers record (or replay) by place."""
        forward, route, calls = type(executor.target).forward, Experts.route, iter(())

        def placed_forward(target, batch, memory, sink=None):
            nonlocal calls
            self._places, calls = _places(batch, executor), iter(range(10_000))
            return forward(target, batch, memory, sink)

        def placed_route(moe, x, active):
            weights, experts = route(moe, x, active)
            layer = next(calls)
            return self._replayed(moe, x, active, layer) if replay else self._kept(weights, experts, layer)

        with monkeypatch.context() as patch:
            patch.setattr(type(executor.target), "forward", placed_forward)
            patch.setattr(Experts, "route", placed_route)
            yield

    def _kept(self, weights: torch.Tensor, experts: torch.Tensor, layer: int):
        for place, chosen in zip(self._places, experts.cpu(), strict=True):
            self._chosen[(layer, *place)] = chosen
        return weights, experts

    def _replayed(self, moe: Experts, x: torch.Tensor, active: torch.Tensor, layer: int):
        """The choices of the text's own tokens; wrong drafts go to the first experts, nothing of theirs is compared."""
        anything = torch.arange(moe.num_chosen)
        experts = torch.stack([self._chosen.get((layer, *place), anything) for place in self._places]).to(x.device)
        self.num_replayed += len(experts)
        probabilities = moe.router(x).float().softmax(-1)
        chosen = probabilities.gather(1, experts.clamp(max=probabilities.shape[1] - 1))
        return chosen / chosen.sum(-1, keepdim=True), experts.masked_fill(~active[:, None], moe.num_experts)


def _places(batch: ForwardBatch, executor: Executor) -> list[Place]:
    """The text and position of each row of a forward."""
    is_verify = isinstance(batch, VerifyBatch)
    counts = [batch.width] * len(batch.seats) if is_verify else [chunk.num_tokens for chunk in batch.chunks]
    names = [
        name for name, count in zip(executor.seats.history[batch.seats, 0].tolist(), counts, strict=True) for _ in range(count)
    ]
    return list(zip(names, batch.positions.tolist(), strict=True))
