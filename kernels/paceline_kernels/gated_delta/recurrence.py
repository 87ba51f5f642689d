"""How the recurrence of the gated delta rule is launched on a GPU; `jitted.py` holds what its kernels do.

`verify_delta` and `delta_step` call it; each prepares the rows in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from paceline_kernels.gated_delta.jitted import verify_chunk, verify_row
from paceline_kernels.gated_delta.reference import Journal
from paceline_kernels.replay import Replay

_PRECISION = "tf32x3"
"""Against float64 its relative error is 1e-7, that of plain tf32 5e-4; ieee takes twice the time."""


@dataclass(frozen=True)
class PreparedRows:
    """Rows as the recurrence takes them, dense, and all float32 but v.

    q, k: [B, W, Hk, Dk], normalised, q scaled; v: [B, W, Hv, Dv]; decays (cumulated), beta: [B, W, Hv]
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decays: torch.Tensor
    beta: torch.Tensor


def advance_and_verify(states: torch.Tensor, journal: Journal, replay: Replay, rows: PreparedRows) -> torch.Tensor:
    """Move states [S, Hv, Dk, Dv] on by their journals, then compute the new rows from them: float32 [B, W, Hv, Dv].

    It replaces only the values of the journal. Value heads share keys, and blocks of columns share decays, so no program may
    write keys or decays while others read them: the caller keeps them afterwards.
    """
    batch, width, key_heads, key_dim = rows.k.shape
    value_heads, value_dim = rows.v.shape[-2:]
    out = torch.empty((batch, width, value_heads, value_dim), dtype=torch.float32, device=rows.v.device)
    block_v, num_warps = _cut(batch, width, value_dim)
    kernel, precision = (verify_row, {}) if width == 1 else (verify_chunk, {"PRECISION": _PRECISION})
    kernel[(batch * value_heads, triton.cdiv(value_dim, block_v))](
        states_ptr=states,
        keys_ptr=journal.keys,
        values_ptr=journal.values,
        decays_ptr=journal.decays,
        slots_ptr=replay.slots,
        journals_ptr=replay.journals,
        num_rows_ptr=replay.num_rows,
        snapshot_rows_ptr=replay.snapshot_rows,
        snapshot_slots_ptr=replay.snapshot_slots,
        q_ptr=rows.q,
        k_ptr=rows.k,
        v_ptr=rows.v,
        new_decays_ptr=rows.decays,
        beta_ptr=rows.beta,
        out_ptr=out,
        width=width,
        num_kept=journal.keys.shape[1],
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        BLOCK_K=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_V=block_v,
        num_warps=num_warps,
        **precision,
    )
    return out


def _cut(batch: int, width: int, value_dim: int) -> tuple[int, int]:
    """Value columns of a program, and its warps.

    Measured on an H200 with 48 heads (us a layer): one row of 1 request 5.1 so, 5.6 with 32 columns and 4 warps; 8 rows of
    16 requests 82 so, 102 with 4 warps, and 1 request 11.2 with 4 warps, 12.1 with 2.
    """
    if width == 1:
        block_v, num_warps = (16, 2) if batch == 1 else (32, 4)
    else:
        block_v, num_warps = (32, 4) if batch < 4 else (32, 2)
    return max(16, min(block_v, triton.next_power_of_2(value_dim))), num_warps
