"""What a step decided goes to the tables by seat, in plain torch.

The face calls it. It refuses to know how the tokens were chosen.
"""

from __future__ import annotations

import torch

from paceline_kernels.seat_tables import SeatTables


def commit_runs(seats: torch.Tensor, run: torch.Tensor, num_tokens: torch.Tensor, tables: SeatTables) -> torch.Tensor:
    """Append the first `num_tokens` int64 [B] of each run int64 [B, W] to its seat's history; int64 [B], what was committed.

    Tokens that do not count go to the history of the dummy, where nothing means anything.
    """
    committed = torch.where(seats > 0, num_tokens, 0)
    columns = torch.arange(run.shape[1], device=seats.device)
    targets = torch.where(columns < committed[:, None], seats[:, None], 0)
    lengths = tables.lengths[seats]
    positions = (lengths[:, None] + 1 + columns).clamp(max=tables.history.shape[1] - 1)
    tables.history[targets, positions] = run
    tables.lengths[seats] = (lengths + committed).clamp(max=tables.max_model_len)
    tables.replay[seats] = committed
    return committed
