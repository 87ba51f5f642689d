"""Matrix products. The weight's tag picks the kernel, so models never ask how a weight is stored."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from paceline_runtime.layers.weights import DENSE, Weight

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

_KERNELS: dict[str, Kernel] = {DENSE: functional.linear}


class Linear:
    """`x W^T + b` for x [..., columns]."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None = None) -> None:
        if weight.kind not in _KERNELS:
            raise ValueError(f"no linear kernel for weights of kind {weight.kind!r}; there are {sorted(_KERNELS)}")
        self.weight, self.bias = weight, bias
        self._kernel = _KERNELS[weight.kind]

    @property
    def num_rows(self) -> int:
        """Outputs per input row."""
        return self.weight.data.shape[0]

    def rows(self, start: int, stop: int) -> Linear:
        """The layer that gives outputs `start` to `stop` of this one, over the same memory."""
        if self.weight.kind != DENSE:
            raise ValueError(f"weights of kind {self.weight.kind!r} cannot be cut by rows")
        bias = None if self.bias is None else self.bias[start:stop]
        return Linear(Weight(DENSE, self.weight.data[start:stop]), bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel(x, self.weight.data, self.bias)
