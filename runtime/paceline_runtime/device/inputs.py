"""The inputs of a decode step in buffers that stay where they are, so that a captured program finds them there again.

The executor fills them before each step; unless other requests decode than before, nothing is uploaded. The executor's maker
chooses how far batches are padded: on a CPU a padded row would be computed for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline_runtime.device.transfer import refill
from paceline_runtime.step import DecodeRow


def _same(count: int) -> int:
    return count


@dataclass(frozen=True)
class Buckets:
    """How many rows, and how many pages a row, the inputs of a decode batch have: at least as many as asked."""

    rows: Callable[[int], int] = _same
    pages: Callable[[int], int] = _same


EXACT = Buckets()


@dataclass(frozen=True)
class DecodeInputs:
    """Who decodes: B rows, padded with the dummy, 0.

    seats, snapshot_slots int64 [B]; the first `num_pages` columns of the page table hold all that the rows read
    """

    seats: torch.Tensor
    snapshot_slots: torch.Tensor
    num_pages: int


class InputBuffers:
    """One table per bucket of rows."""

    def __init__(self, buckets: Buckets, device: torch.device) -> None:
        self._buckets = buckets
        self._device = device
        self._tables: dict[int, tuple[torch.Tensor, list[list[int]]]] = {}

    def decode(self, rows: Sequence[DecodeRow]) -> DecodeInputs:
        """The inputs of these rows, in the buffers of their bucket."""
        return self._filled(self._buckets.rows(len(rows)), rows, max(row.num_pages for row in rows))

    def inert(self, count: int) -> DecodeInputs:
        """The inputs of `count` rows of seat 0: a step with them does all of its work and leaves no trace."""
        return self._filled(self._buckets.rows(count), (), 1)

    def _filled(self, size: int, rows: Sequence[DecodeRow], num_pages: int) -> DecodeInputs:
        padding = [0] * (size - len(rows))
        values = [[row.seat for row in rows] + padding, [row.snapshot_slot for row in rows] + padding]
        table, last = self._tables.get(size) or (torch.zeros((2, size), dtype=torch.int64, device=self._device), [])
        if last != values:
            refill(table, values)
            self._tables[size] = table, values
        return DecodeInputs(table[0], table[1], self._buckets.pages(num_pages))
