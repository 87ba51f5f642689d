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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel(x, self.weight.data, self.bias)
