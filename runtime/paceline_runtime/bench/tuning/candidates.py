"""The cuts that are worth a try for a matrix. Values only; `choice` measures them and `precompile` prepares them."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_kernels.skinny_linear import Tile
from paceline_runtime.bench.tuning.matrices import Matrix

_SHAPES = (
    *((32, 128, 4, 6, False), (64, 128, 4, 4, False), (128, 128, 8, 4, False), (32, 256, 4, 3, False)),
    *((64, 128, 4, 4, True), (64, 128, 4, 5, True), (64, 256, 4, 3, True), (128, 128, 4, 4, True)),
    *((128, 128, 8, 4, True), (128, 64, 4, 6, True), (64, 64, 4, 8, True)),
)
"""Rows, columns, warps, stages and whether weights are on the left: what was best for some product of a 27B model or a 35B
mixture on an H200, out of several hundred."""
_SPLITS = (1, 2, 3, 4, 8)
_MANY_OUTPUTS = {"whole": 10_000, "parts": 10_000, "gated": 4096}
"""From here on the outputs alone keep a GPU busy, and sums of parts would only be written and read again."""
_MANY_PROGRAMS = 700
"""Four parts and more are for matrices too small to fill a GPU."""


def candidates(matrix: Matrix) -> Iterator[Tile]:
    """Cuts of all columns into equal parts, each of them at least two tiles long."""
    for rows, columns, warps, stages, left in _SHAPES:
        for splits in _SPLITS:
            num_tiles, rest = divmod(matrix.columns, columns * splits)
            if rest or num_tiles < 2:
                continue
            if splits > 1 and matrix.outputs > _MANY_OUTPUTS[matrix.kind]:
                continue
            if splits >= 4 and -(-matrix.outputs // rows) * splits > _MANY_PROGRAMS:
                continue
            yield Tile(rows, columns, splits, warps, stages, left)
