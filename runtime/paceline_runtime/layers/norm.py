"""The norm layer."""

from __future__ import annotations

import torch

from paceline_kernels.rms_norm import rms_norm


class RmsNorm:
    """RMS norm over the last dimension with a learned weight, computed in at least float32.

    A weight wider than the rows, as zero-centred ones are, widens the computation and not the result.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.to(self.weight.dtype), self.weight, self.eps).to(x.dtype)
