"""What the device keeps of requests between steps, by seat: the part that the operations at a step's ends share.

The runtime's buffers by seat hold one; all tensors are on the device and nobody reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SeatTables:
    """The tables of S seats; seat 0 is the dummy of inert rows.

    history:       int64 [S, L], committed ids; history[seat, lengths[seat]] is the pending token, the last of them
    page_table:    int64 [S, P], pages of each seat in order, dummies past its own
    lengths:       int64 [S], tokens in the cache
    replay:        int64 [S], rows of the last verify that were committed
    state_slots:   int64 [S], recurrent state of each seat
    max_model_len: positions that a context has; the history has room for some more
    page_size:     tokens of a page
    """

    history: torch.Tensor
    page_table: torch.Tensor
    lengths: torch.Tensor
    replay: torch.Tensor
    state_slots: torch.Tensor
    max_model_len: int
    page_size: int
