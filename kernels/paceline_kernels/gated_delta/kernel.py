"""The verify of the gated delta rule on a GPU, for rows as the convolution gives them.

The face calls it; `recurrence.py` launches what it prepares.
"""

from __future__ import annotations

import torch
import triton

from paceline_kernels.gated_delta.jitted import normalise
from paceline_kernels.gated_delta.recurrence import PreparedRows, advance_and_verify
from paceline_kernels.gated_delta.reference import DeltaRows, Journal
from paceline_kernels.replay import Replay

_MAX_ROWS = 8
_MAX_JOURNAL_ROWS = 16


def takes(num_rows: int, num_journal_rows: int) -> bool:
    """Whether the kernels take so many rows a request, and a journal with room for so many."""
    return num_rows <= _MAX_ROWS and num_journal_rows <= _MAX_JOURNAL_ROWS


def verify_delta(states: torch.Tensor, journal: Journal, replay: Replay, rows: DeltaRows) -> torch.Tensor:
    """The operation, for float32 states."""
    width = rows.k.shape[1]
    assert takes(width, journal.keys.shape[1]), f"{width} rows, or a journal for {journal.keys.shape[1]}, are too many"
    q, k = _normalised_rows(rows)
    prepared = PreparedRows(q, k, rows.v.contiguous(), rows.log_decay.cumsum(1), rows.beta.contiguous())
    out = advance_and_verify(states, journal, replay, prepared)
    journal.keys[:, :width].index_copy_(0, replay.journals, k)
    journal.decays[:, :width].index_copy_(0, replay.journals, prepared.decays)
    return out.to(rows.v.dtype)


def _normalised_rows(rows: DeltaRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised and scaled q and normalised k, float32 [B, W, Hk, Dk]."""
    batch, width, heads, dim = rows.k.shape
    q, k = (x if x.stride()[2:] == (dim, 1) else x.contiguous() for x in (rows.q, rows.k))
    out = torch.empty((2, batch, width, heads, dim), dtype=torch.float32, device=k.device)
    normalise[(batch * width, heads)](
        q_ptr=q,
        k_ptr=k,
        q_out_ptr=out[0],
        k_out_ptr=out[1],
        width=width,
        heads=heads,
        dim=dim,
        q_request_stride=q.stride(0),
        q_row_stride=q.stride(1),
        k_request_stride=k.stride(0),
        k_row_stride=k.stride(1),
        scale=dim**-0.5,
        BLOCK_K=triton.next_power_of_2(dim),
    )
    return out[0], out[1]
