"""A pure read of an array, in plain torch. Called by the bench on a CPU, and by the kernel's test as the oracle."""

from __future__ import annotations

import torch


def stream_read(x: torch.Tensor) -> torch.Tensor:
    """The sum of x int32 [N], int32 []: every element is read, one is written."""
    return x.sum(dtype=torch.int32)
