"""RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467), by torch's own operator."""

from __future__ import annotations

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / rms(x) * weight` over the last dimension: x [..., H], weight [H].

    Torch computes in at least float32, so float64 stays float64 (transformers' norms go through float32).
    """
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)
