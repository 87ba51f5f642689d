"""The selector walk of DFlash 2: a path through the candidates of a block's drafts, greedy and sampled rows together.

The draft calls it. Only the temperature enters the draft's distribution; every other sampling parameter acts on the target's
side of the verify.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.selector import reference
from paceline_kernels.selector.reference import Candidates, Codebooks, Draws

__all__ = ["Candidates", "Codebooks", "Draws", "select_path"]


def select_path(
    candidates: Candidates,
    codebooks: Codebooks,
    anchors: torch.Tensor,
    draws: Draws,
    *,
    backend: Backend = Backend.AUTO,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Walk K drafts of C candidates from the `anchors` int64 [B]: tokens int64 [B, K], and q [B, K, C] over the candidates.

    Draft j scores `unary + <predecessor[previous token] * hidden[j], successor[candidate]>`. A greedy row (temperature 0)
    takes the argmax, the first of equals; a sampled row draws from q = softmax(score / temperature), by Gumbel noise keyed
    with the candidate's id, so the order of candidates does not matter. A candidate of q = 0 is never drawn.
    q is at least float32.
    """
    if runs_kernel(backend, candidates.unary.device, candidates.unary.dtype, candidates.hidden.dtype):
        from paceline_kernels.selector import kernel

        return kernel.select_path(candidates, codebooks, anchors, draws)
    return reference.select_path(candidates, codebooks, anchors, draws)
