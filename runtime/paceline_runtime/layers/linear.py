"""Matrix products. `Parameters` makes them for every other layer.

A layer says which weights, and what is added; only the weight knows how it is stored.
"""

from __future__ import annotations

import torch

from paceline_runtime.layers.weights.base import Weight
from paceline_runtime.layers.weights.shard import Split


class Linear:
    """`x W^T + b` for x [..., columns]. W may be several weights, whose outputs stand side by side.

    `split` says what shards divide of W; None: every shard holds all of it.
    """

    def __init__(self, *weights: Weight, bias: torch.Tensor | None = None, split: Split | None = None) -> None:
        self.weights, self.bias, self.split = weights, bias, split
        rows = [weight.shape[0] for weight in weights]
        self.num_rows = sum(rows)
        self._biases = [None] * len(weights) if bias is None else torch.split(bias, rows)

    def rows(self, start: int, stop: int) -> Linear:
        """The layer that gives outputs `start` to `stop` of this one, over the same memory."""
        parts, first = [], 0
        for weight in self.weights:
            begin, end = max(start - first, 0), min(stop - first, weight.shape[0])
            if begin < end:
                parts.append(weight.take(slice(begin, end)))
            first += weight.shape[0]
        return Linear(*parts, bias=None if self.bias is None else self.bias[start:stop], split=self.split)

    def to_be_added(self, x: torch.Tensor) -> torch.Tensor:
        """What the norm after this layer adds to the residual stream: rows [N, outputs], or parts [P, N, outputs] of them."""
        return self.weights[0].matmul_to_add(x) if len(self.weights) == 1 and self.bias is None else self(x)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` of rows x [N, columns], where even outputs are gates and odd ones are ups: [N, outputs / 2]."""
        (weight,) = self.weights
        return weight.matmul_gated(x, self.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [weight.matmul(x, bias) for weight, bias in zip(self.weights, self._biases, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
