"""Which kernels the gated delta rule runs with: plain torch anywhere, libraries and Triton on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_kernels.gated_delta import DeltaRows, Journal, prefill, verify
from paceline_kernels.replay import Replay


@dataclass(frozen=True)
class DeltaOps:
    """Implementations with the signatures of the references in `paceline_kernels.gated_delta`."""

    verify: Callable[[torch.Tensor, Journal, Replay, DeltaRows], torch.Tensor] = verify
    prefill: Callable[[DeltaRows, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = prefill


REFERENCE = DeltaOps()


def ops_for(device: torch.device) -> DeltaOps:
    """The kernels of a device."""
    return REFERENCE
