"""What the engine asks of a target model. `Decoder` implements it; the device's programs and proposers call it.

It refuses to know about requests, sampling and speculation: rows in, hidden states and logits out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.cache.state import StatePool


@dataclass(frozen=True)
class TargetMemory:
    """The caches one target forward reads and writes."""

    pages: PageStore
    states: StatePool | None = None


class FeatureSink(Protocol):
    """Receives the outputs of tapped layers during one target forward, residual added."""

    def wants(self, layer: int) -> bool:
        """Whether `layer_output` is to be called after this layer."""
        ...

    def layer_output(self, layer: int, hidden: torch.Tensor) -> None:
        """Take the output [N, H] of one layer; called once per tapped layer, in order."""
        ...


class TargetModel(Protocol):
    """A loaded target, built from `facts` that no rule refuses."""

    facts: TargetFacts
    dtype: torch.dtype
    device: torch.device

    def forward(self, batch: ForwardBatch, memory: TargetMemory, sink: FeatureSink | None = None) -> torch.Tensor:
        """Run all layers over the batch's rows: [N, H], the final norm applied. Writes K/V (and state) of the rows."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Input embeddings [..., H] of ids [...]; proposers share them."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [M, vocab_size] of normed hidden rows [M, H]; rows of a padded head are cut off. Proposers share them."""
        ...

    def make_states(self, tensors: Mapping[str, torch.Tensor]) -> StatePool | None:
        """A pool over the allocated buffers of the target, by name; None for targets without recurrent state."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of weights held on the device."""
        ...
