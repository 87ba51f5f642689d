"""Depthwise causal convolution with SiLU over rows whose predecessors are kept in slots, and a journal of a verify's rows.

The Gated DeltaNet layers and their states call it. A slot's state is the K - 1 inputs before the next row. A verify does not
move the state: it journals its own inputs, and the next step applies those that were accepted. Device tensors, which nobody
reads back, say which slots and how many rows.

Shapes: states [S, K - 1, C] by slot; journal [J, R, C]; weight [C, K], the last tap for the row itself.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.causal_conv import reference
from paceline_kernels.causal_conv.reference import prefill_conv, replay_conv
from paceline_kernels.replay import Replay

__all__ = ["prefill_conv", "replay_conv", "verify_conv"]


def verify_conv(
    states: torch.Tensor,
    journal: torch.Tensor,
    replay: Replay,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """Replay, then convolve the new rows x [B, W, C] without moving the state; they become the journal. [B, W, C]."""
    if runs_kernel(backend, x.device, x.dtype):
        from paceline_kernels.causal_conv import kernel

        return kernel.verify_conv(states, journal, replay, x, weight)
    return reference.verify_conv(states, journal, replay, x, weight)
