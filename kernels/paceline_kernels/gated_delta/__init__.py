"""The gated delta rule: prefill from a state, and a verify that journals its rows instead of writing the state.

Per value head, state S [Dk, Dv] and a row (q, k, v, g, beta): S <- e^g S; u = beta (v - k^T S); S <- S + k u^T; o = q^T S
(Yang et al. 2024, arXiv 2412.06464). The Gated DeltaNet layers call it. A verify must not write ahead, since its rows may be
rejected: it keeps what each row would add, which is the key, the corrected value u and the cumulated log decay. The
next step applies the accepted rows to the state as one product. States and journal are float32, or float64 where the engine
is. Each of Hk key heads serves Hv / Hk neighbouring ones of Hv value heads.
"""

from __future__ import annotations

import functools
import logging

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.gated_delta import reference
from paceline_kernels.gated_delta.reference import DeltaRows, Journal, replay_delta
from paceline_kernels.replay import Replay

__all__ = ["DeltaRows", "Journal", "prefill_delta", "replay_delta", "verify_delta"]

_LOG = logging.getLogger(__name__)


def verify_delta(
    states: torch.Tensor, journal: Journal, replay: Replay, rows: DeltaRows, *, backend: Backend = Backend.AUTO
) -> torch.Tensor:
    """Replay, then compute W new rows per request from the replayed state without writing it: [B, W, Hv, Dv] of v's dtype.

    The new rows become the journal. Slot and journal 0 are dummies: inert requests name them, and what they hold means nothing.
    """
    if runs_kernel(backend, states.device, states.dtype):
        from paceline_kernels.gated_delta import kernel

        # The journal keeps the configured depth while an adaptive one verifies less.
        if kernel.takes(rows.k.shape[1], journal.keys.shape[1]):
            return kernel.verify_delta(states, journal, replay, rows)
    return reference.verify_delta(states, journal, replay, rows)


def prefill_delta(
    rows: DeltaRows, state: torch.Tensor, *, backend: Backend = Backend.AUTO
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence of T rows from `state` [Hv, Dk, Dv]: outputs [T, Hv, Dv] of v's dtype, and the state after them."""
    if runs_kernel(backend, state.device, state.dtype) and rows.v.dtype != torch.float32 and _has_fla():
        from paceline_kernels.gated_delta import fla_prefill

        return fla_prefill.prefill_delta(rows, state)
    return reference.prefill_delta(rows, state)


@functools.cache
def _has_fla() -> bool:
    """Whether flash-linear-attention can be imported; the first call looks for it, and warns where it is missing."""
    try:
        import paceline_kernels.gated_delta.fla_prefill  # noqa: F401
    except ModuleNotFoundError as error:
        _LOG.warning(
            "%s is not installed (extra `gpu`): long prompts are computed in plain torch, several times slower", error.name
        )
        return False
    return True
