"""Token ids in, logits out: both ends of a model, which may share one matrix."""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.weights import DENSE, Weight


class Embedding:
    """Rows of a matrix [at least vocab_size, H] by token id."""

    def __init__(self, weight: Weight) -> None:
        if weight.kind != DENSE:
            raise ValueError(f"no embedding kernel for weights of kind {weight.kind!r}; there is {DENSE!r}")
        self.weight = weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(ids, self.weight.data)


class Head:
    """Logits [M, vocab_size] of hidden rows [M, H]; padding rows of the matrix are never multiplied."""

    def __init__(self, weight: Weight, vocab_size: int) -> None:
        self._linear = Linear(Weight(weight.kind, weight.data[:vocab_size]))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._linear(hidden)
