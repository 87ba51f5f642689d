"""The choice among cuts of one matrix: the fastest that give a row the same sums at every number of rows.

`tune` calls it with a trial on a device. It knows no device and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline_kernels.skinny_linear import ROW_BUCKETS, Product, Tile
from paceline_runtime.bench.tuning.matrices import Matrix

LIBRARY_GAIN = 1.06
"""So much longer a cut may take than torch's library, which is one launch less to understand but gives a row other sums."""
_WEIGHTS = {1: 2.0, 8: 2.0, 16: 1.0, 32: 1.0, 64: 0.5}
"""How much the times at these rows count: few requests are the usual case."""
_LEAST_HEIGHT = 16
"""Fewer rows are padded to as many: their kernel is the same."""


class Trial(Protocol):
    """One matrix on a device."""

    def sums(self, tile: Tile) -> torch.Tensor | None:
        """What a cut makes of a few rows, always the same ones; None where this device cannot run it."""
        ...

    def seconds(self, rows: int, tile: Tile | None) -> float | None:
        """Time of a product of so many rows, by torch's library without a cut; None where this device cannot run it."""
        ...


@dataclass(frozen=True)
class Timing:
    """A product at one number of rows: the best cut of the class that was chosen and its time, and the library's time."""

    cut: Tile | None
    seconds: float | None
    library_s: float

    @property
    def tile(self) -> Tile | None:
        """What goes into the table: None where the library is clearly faster, or alone."""
        return self.cut if self.seconds is not None and self.seconds <= LIBRARY_GAIN * self.library_s else None


@dataclass(frozen=True)
class Tuned:
    """What was found for a matrix, by rows; `num_classes` is how many sums there were to choose from."""

    matrix: Matrix
    timings: Mapping[int, Timing]
    num_classes: int

    def cuts(self) -> dict[Product, Tile | None]:
        """A cut for every number of rows that a table is asked for, all of one class."""
        matrix = self.matrix
        return {
            Product(rows, matrix.outputs, matrix.columns, matrix.kind): self._tile(rows) for rows in ROW_BUCKETS
        }  # fmt: skip

    def _tile(self, rows: int) -> Tile | None:
        """As measured; else as fewer rows that run the same kernel, else as more, whose cut has room for these."""
        measured = sorted(self.timings)
        same = [m for m in measured if m <= rows and max(m, _LEAST_HEIGHT) == max(rows, _LEAST_HEIGHT)]
        near = [*reversed(same), *(m for m in measured if m > rows)]
        return self.timings[near[0]].tile if near else None


def tune(matrix: Matrix, rows: Sequence[int], trial: Trial, tiles: Iterable[Tile]) -> Tuned:
    """Measure every cut at all `rows`, and choose one class for all of them."""
    library = {m: _library_s(trial, m) for m in rows}
    classes = _classes(trial, tiles)
    runs = [best for members in classes if (best := _best(trial, rows, members)) is not None]
    if not runs:
        return Tuned(matrix, {m: Timing(None, None, library[m]) for m in rows}, len(classes))
    chosen = min(runs, key=lambda best: sum(_WEIGHTS[m] * best[m][0] / library[m] for m in rows))
    return Tuned(matrix, {m: Timing(chosen[m][1], chosen[m][0], library[m]) for m in rows}, len(classes))


def _library_s(trial: Trial, rows: int) -> float:
    seconds = trial.seconds(rows, None)
    assert seconds is not None, "torch's library runs everywhere"
    return seconds


def _classes(trial: Trial, tiles: Iterable[Tile]) -> list[list[Tile]]:
    """Cuts in as many parts that give the same bits."""
    found: list[tuple[int, torch.Tensor, list[Tile]]] = []
    for tile in tiles:
        sums = trial.sums(tile)
        if sums is None:
            continue
        for splits, others, members in found:
            if splits == tile.splits and torch.equal(others, sums):
                members.append(tile)
                break
        else:
            found.append((tile.splits, sums, [tile]))
    return [members for _, _, members in found]


def _best(trial: Trial, rows: Sequence[int], members: Sequence[Tile]) -> dict[int, tuple[float, Tile]] | None:
    """The fastest of a class at each number of rows; None where it has none for some."""
    best: dict[int, tuple[float, Tile]] = {}
    for m in rows:
        times = [(seconds, index) for index, tile in enumerate(members) if (seconds := trial.seconds(m, tile)) is not None]
        if not times:
            return None
        seconds, index = min(times)
        best[m] = seconds, members[index]
    return best
