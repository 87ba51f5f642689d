"""Prefill of the gated delta rule by flash-linear-attention's chunked kernel, which large prompts need on a GPU.

The face imports it only where there is a GPU: without one, fla's mere presence breaks transformers.
"""

from __future__ import annotations

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

from paceline_kernels.gated_delta.reference import DeltaRows


def prefill_delta(rows: DeltaRows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operation, for 16-bit rows and float32 states; fla's layout of a state and its sharing of key heads are ours."""
    out, after = chunk_gated_delta_rule(
        q=rows.q[None],
        k=rows.k[None],
        v=rows.v[None],
        g=rows.log_decay[None],
        beta=rows.beta[None],
        initial_state=state[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return out[0], after[0]
