"""What a step decided goes to the tables by seat as one Triton kernel: one program for one request.

The face calls it on a GPU, where plain torch makes some fifteen launches of it with nothing beside them to do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.seat_tables import SeatTables


def commit_runs(seats: torch.Tensor, run: torch.Tensor, num_tokens: torch.Tensor, tables: SeatTables) -> torch.Tensor:
    """`commit_runs` of the reference; the dummy's history stays as it is."""
    batch, width = run.shape
    committed = torch.empty(batch, dtype=torch.int64, device=seats.device)
    _commit_runs[(batch,)](
        seats_ptr=seats,
        run_ptr=run,
        run_stride=run.stride(0),
        run_step=run.stride(1),
        num_tokens_ptr=num_tokens,
        num_tokens_step=num_tokens.stride(0),
        history_ptr=tables.history,
        history_stride=tables.history.stride(0),
        history_width=tables.history.shape[1],
        lengths_ptr=tables.lengths,
        replay_ptr=tables.replay,
        committed_ptr=committed,
        max_model_len=tables.max_model_len,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        num_warps=1,
    )
    return committed


@triton.jit
def _commit_runs(
    seats_ptr,
    run_ptr,
    run_stride,
    run_step,
    num_tokens_ptr,
    num_tokens_step,
    history_ptr,
    history_stride,
    history_width,
    lengths_ptr,
    replay_ptr,
    committed_ptr,
    max_model_len,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    seat = tl.load(seats_ptr + row)
    is_live = seat > 0
    committed = tl.where(is_live, tl.load(num_tokens_ptr + row * num_tokens_step), 0)
    length = tl.load(lengths_ptr + seat)
    column = tl.arange(0, BLOCK_WIDTH)
    kept = (column < WIDTH) & (column < committed)
    run = tl.load(run_ptr + row * run_stride + column * run_step, mask=kept, other=0)
    position = tl.minimum(length + 1 + column, history_width - 1)
    tl.store(history_ptr + seat * history_stride + position, run, mask=kept)
    tl.store(committed_ptr + row, committed)
    # Inert rows share the dummy, whose numbers stay 0.
    tl.store(lengths_ptr + seat, tl.minimum(length + committed, max_model_len), mask=is_live)
    tl.store(replay_ptr + seat, committed, mask=is_live)
