"""Matrix products. The weight's tag picks the kernel, so models never ask how a weight is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch.nn import functional

from paceline_runtime.layers.weights import DENSE, Weight

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

# Torch's CPU products in float32 go to MKL, which on an AMD EPYC is 1.5 (1 row) to 2.2 times (256 rows) as slow as oneDNN
# with the same float32 arithmetic. Torch reaches oneDNN with plain weights only through the operator its compiler emits.
_HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if _HAS_ONEDNN and weight.dtype == torch.float32 and weight.device.type == "cpu":
        return cast(torch.Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))
    return functional.linear(x, weight, bias)


_KERNELS: dict[str, Kernel] = {DENSE: _dense}


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
