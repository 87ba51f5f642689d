"""Which kernels Gated DeltaNet runs with: plain torch anywhere, Triton and flash-linear-attention on a GPU.

Called by the hybrid families once per model. It refuses to know what the operations are for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_kernels.causal_conv import verify_conv
from paceline_kernels.gated_delta import DeltaRows, Journal, prefill, verify
from paceline_kernels.replay import Replay

_LOG = logging.getLogger(__name__)

VerifyConv = Callable[[torch.Tensor, torch.Tensor, Replay, torch.Tensor, torch.Tensor], torch.Tensor]
Verify = Callable[[torch.Tensor, Journal, Replay, DeltaRows], torch.Tensor]
Prefill = Callable[[DeltaRows, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class DeltaOps:
    """Implementations with the signatures of the references in `paceline_kernels`."""

    verify_conv: VerifyConv = verify_conv
    verify: Verify = verify
    prefill: Prefill = prefill


REFERENCE = DeltaOps()


def ops_for(device: torch.device, dtype: torch.dtype) -> DeltaOps:
    """The fast path of a device; Triton and fla are imported only where they run. Float64 keeps to plain torch."""
    if device.type != "cuda" or dtype == torch.float64:
        return REFERENCE
    from paceline_kernels.causal_conv.kernel import verify_conv_kernel

    return DeltaOps(verify_conv_kernel, _gpu_verify(), _gpu_prefill(dtype))


def _gpu_verify() -> Verify:
    from paceline_kernels.gated_delta.kernel import MAX_JOURNAL_ROWS, MAX_ROWS, verify_kernel

    def choose(states: torch.Tensor, journal: Journal, step: Replay, rows: DeltaRows) -> torch.Tensor:
        # The journal keeps the configured depth while an adaptive one verifies less.
        fits = rows.k.shape[1] <= MAX_ROWS and journal.keys.shape[1] <= MAX_JOURNAL_ROWS
        return (verify_kernel if fits else verify)(states, journal, step, rows)

    return choose


def _gpu_prefill(dtype: torch.dtype) -> Prefill:
    if dtype == torch.float32:  # fla refuses it
        return prefill
    try:
        from paceline_kernels.gated_delta.fla_prefill import prefill_fla
    except ModuleNotFoundError as error:
        _LOG.warning(
            "%s is not installed (extra `gpu`): long prompts are computed in plain torch, several times slower", error.name
        )
        return prefill
    return prefill_fla
