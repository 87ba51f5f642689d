"""The selector walk of DFlash 2: a path through the candidates of a block's drafts, greedy and sampled rows together.

The draft calls it. Only the temperature enters the draft's distribution; every other sampling parameter acts on the target's
side of the verify.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.selector import reference

__all__ = ["select_path"]


def select_path(
    unary: torch.Tensor,
    candidates: torch.Tensor,
    hidden: torch.Tensor,
    predecessor: torch.Tensor,
    successor: torch.Tensor,
    anchors: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    *,
    backend: Backend = Backend.AUTO,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk K drafts of C candidates: (tokens int64 [B, K], q [B, K, C] over the candidates, at least float32).

    Draft j scores `unary + <predecessor[previous token] * hidden[j], successor[candidate]>`. A greedy row (temperature 0)
    takes the argmax, the first of equals; a sampled row draws from q = softmax(score / temperature), by Gumbel noise keyed
    with the candidate's id, so the order of candidates does not matter. A candidate of q = 0 is never drawn.

    unary: [B, K, C]; candidates: int64 [B, K, C]; hidden: [B, K, r]; predecessor, successor: [V, r]
    anchors, seeds: int64 [B]; temperature: float [B]; positions: int64 [B, K], where each drafted token would stand
    """
    arguments = (unary, candidates, hidden, predecessor, successor, anchors, temperature, seeds, positions)
    if runs_kernel(backend, unary.device, unary.dtype, hidden.dtype):
        from paceline_kernels.selector import kernel

        return kernel.select_path(*arguments)
    return reference.select_path(*arguments)
