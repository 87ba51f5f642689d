"""What a step decided goes to the tables by seat: runs of tokens, lengths, and what a recurrent state has yet to apply.

The owner of the tables calls it after every verify. It refuses to know how the tokens were chosen.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.commit_runs import reference
from paceline_kernels.seat_tables import SeatTables

__all__ = ["commit_runs"]


def commit_runs(
    seats: torch.Tensor, run: torch.Tensor, num_tokens: torch.Tensor, tables: SeatTables, *, backend: Backend = Backend.AUTO
) -> torch.Tensor:
    """Append the first `num_tokens` int64 [B] of each run int64 [B, W] to its seat's history; int64 [B], what was committed.

    The last one committed becomes the pending token. Nothing is committed for seat 0, which may occur more than once, nor
    past the context's end.
    """
    if runs_kernel(backend, seats.device):
        from paceline_kernels.commit_runs import kernel

        return kernel.commit_runs(seats, run, num_tokens, tables)
    return reference.commit_runs(seats, run, num_tokens, tables)
