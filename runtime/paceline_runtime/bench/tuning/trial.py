"""A matrix on a device, multiplied as layers multiply it: through the operations' faces, with a table of the one cut on trial.

`tune` makes one for each matrix. Weights of many matrices are read in turn, so that none of them stays in the L2 cache, and a
CUDA graph launches them, as decode steps are launched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_kernels.backend import Backend, is_compiler_error
from paceline_kernels.skinny_linear import (
    MAX_ROWS,
    NO_TILES,
    Product,
    Tile,
    TileTable,
    skinny_gated_linear,
    skinny_linear,
    skinny_partial_linear,
)
from paceline_runtime.bench.timing import median_s
from paceline_runtime.bench.tuning.matrices import Matrix

Clock = Callable[[Callable[[], object]], float]
"""Seconds that a call takes on the device."""
_MANY_BYTES = 800_000_000
_MOST_WEIGHTS = 400
_FEWEST_WEIGHTS = 2
_SUM_ROWS = 8
_SPREAD = 0.02
_REPLAYS = 41
_COMPILER_SAYS = ("Triton Error", "PassManager")
_OPERATIONS = {"whole": skinny_linear, "parts": skinny_partial_linear, "gated": skinny_gated_linear}


@dataclass(frozen=True)
class Place:
    """Where and in what dtype products are tried; a CPU needs Triton's interpreter and `Backend.KERNEL`."""

    device: torch.device
    dtype: torch.dtype
    backend: Backend = Backend.AUTO


class DeviceTrial:
    """A `Trial` by a clock, over weights of `num_bytes` in all."""

    def __init__(self, matrix: Matrix, place: Place, clock: Clock, num_bytes: int = _MANY_BYTES) -> None:
        self._matrix, self._place, self._clock = matrix, place, clock
        one_bytes = matrix.outputs * matrix.columns * place.dtype.itemsize
        count = max(_FEWEST_WEIGHTS, min(_MOST_WEIGHTS, num_bytes // one_bytes))
        generator = torch.Generator(place.device).manual_seed(0)
        self._weights = [_empty(matrix.outputs, matrix.columns, place) for _ in range(count)]
        for weight in self._weights:
            weight.normal_(0.0, _SPREAD, generator=generator)
        self._x = _empty(MAX_ROWS, matrix.columns, place).normal_(generator=generator)

    def sums(self, tile: Tile) -> torch.Tensor | None:
        """Parts are added, as their reader adds them."""
        try:
            out = multiply(self._matrix, self._x[:_SUM_ROWS], self._weights[0], tile, self._place.backend)
        except Exception as error:
            if not is_unable(error):
                raise
            return None
        return out.sum(0) if out.dim() == 3 else out

    def seconds(self, rows: int, tile: Tile | None) -> float | None:
        """Of one product, on average over the weights."""
        x, backend = self._x[:rows], self._place.backend
        try:
            seconds = self._clock(lambda: [multiply(self._matrix, x, weight, tile, backend) for weight in self._weights])
        except Exception as error:
            if not is_unable(error):
                raise
            return None
        return seconds / len(self._weights)


def multiply(matrix: Matrix, x: torch.Tensor, weight: torch.Tensor, tile: Tile | None, backend: Backend) -> torch.Tensor:
    """The product with this cut, or by torch's library."""
    table = NO_TILES if tile is None else TileTable({Product(len(x), weight.shape[0], weight.shape[1], matrix.kind): tile})
    return _OPERATIONS[matrix.kind](x, weight, tiles=table, backend=backend)


def cuda_clock(call: Callable[[], object]) -> float:
    """Seconds of a replay of the call's launches, the median of some."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return median_s(graph.replay, torch.device("cuda"), _REPLAYS)


def is_unable(error: Exception) -> bool:
    """Whether a device has no registers, shared memory or instructions for a cut; all else that is raised is our fault."""
    is_compilers = isinstance(error, RuntimeError) and str(error).startswith(_COMPILER_SAYS)
    return is_compiler_error(error) or is_compilers


def _empty(rows: int, columns: int, place: Place) -> torch.Tensor:
    return torch.empty((rows, columns), dtype=place.dtype, device=place.device)
