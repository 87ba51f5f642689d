"""The likeliest ids of rows of logits, ties broken by id. Sampling calls it."""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.top_logits import reference

__all__ = ["top_logits"]


def top_logits(logits: torch.Tensor, count: int, *, backend: Backend = Backend.AUTO) -> tuple[torch.Tensor, torch.Tensor]:
    """Values [..., count] and ids int64 [..., count] of the largest logits [..., V], largest first, ties by lower id."""
    if runs_kernel(backend, logits.device, logits.dtype):
        from paceline_kernels.top_logits import kernel

        if kernel.takes(logits.shape[-1], count):
            values, ids = kernel.top_logits(logits.reshape(-1, logits.shape[-1]), count)
            return values.view(*logits.shape[:-1], count), ids.view(*logits.shape[:-1], count)
    return reference.top_logits(logits, count)
