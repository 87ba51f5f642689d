"""Compiles the kernels of all cuts in as many processes as there are cores, before any is timed: one process takes minutes.

`tune` calls it. Triton's cache on disk carries what a process compiled to the one that measures.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from paceline_kernels.skinny_linear import Tile
from paceline_runtime.bench.tuning.matrices import Matrix
from paceline_runtime.bench.tuning.trial import Place, is_unable, multiply

_FEW_OUTPUTS = 1024
_SPECIAL = 16
"""Triton compiles a kernel anew for sizes that this divides."""


@dataclass(frozen=True)
class Job:
    """One kernel: a cut of a matrix at a number of rows."""

    matrix: Matrix
    rows: int
    tile: Tile


def jobs(matrices: Iterable[Matrix], rows: Sequence[int], tiles_of: Callable[[Matrix], Iterable[Tile]]) -> list[Job]:
    """A job for each kernel that the cuts of these matrices take, with few outputs, of which a kernel does not depend."""
    found: dict[tuple[object, ...], Job] = {}
    for matrix in matrices:
        few = replace(matrix, outputs=min(matrix.outputs, _FEW_OUTPUTS + matrix.outputs % _SPECIAL))
        for tile in tiles_of(matrix):
            for m in rows:
                kernel = (matrix.kind, few.outputs % _SPECIAL, m, replace(tile, splits=min(tile.splits, 2)))
                found.setdefault(kernel, Job(few, m, tile))
    return list(found.values())


def compile_all(some: Sequence[Job], place: Place, num_processes: int) -> int:
    """Compile in other processes; how many of the kernels this device cannot run."""
    context = multiprocessing.get_context("spawn")  # a forked child cannot use the GPU
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        return sum(not is_able for is_able in pool.map(compile_one, some, [place] * len(some), chunksize=1))


def compile_one(job: Job, place: Place) -> bool:
    """Run one product of zeros; whether this device can."""
    with torch.cuda.device(place.device) if place.device.type == "cuda" else nullcontext():
        return _runs(job, place)


def _runs(job: Job, place: Place) -> bool:
    x, weight = (
        torch.zeros((count, job.matrix.columns), dtype=place.dtype, device=place.device)
        for count in (job.rows, job.matrix.outputs)
    )
    try:
        multiply(job.matrix, x, weight, job.tile, place.backend)
    except Exception as error:
        if not is_unable(error):
            raise
        return False
    return True
