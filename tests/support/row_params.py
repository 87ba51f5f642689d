"""Sampling parameters of rows as a decode step has them: written to seats and gathered from there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline_compat.memory.buffers import seat_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.device.seat_params import SeatParams
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.step import Start, Variant


def row_params(
    params: Sequence[SamplingParams], keys: Sequence[int], prompt_lengths: Sequence[int], device: torch.device
) -> RowParams:
    """Of one request each, in seats 1, 2 ..."""
    seats = SeatParams(allocate(MemoryLayout(seat_buffers(1, 0), num_seats=1 + len(params)), device))
    rows = zip(params, keys, prompt_lengths, strict=True)
    for seat, (one, key, num_prompt) in enumerate(rows, 1):
        seats.start(Start(seat, one, key, num_prompt, (), 0, (), 0, 0))
    return seats.of(torch.arange(1, 1 + len(params), device=device), Variant.together(map(Variant.of, params)))
