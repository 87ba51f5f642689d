"""`paceline bench tune`: how products of few rows are best cut on this device, as a table that `--tiles` takes.

The bench's command calls it. What there is to cut comes from a model's shape; weights are random, times are real.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline_kernels.skinny_linear import Tile, TileTable, file_name, to_json
from paceline_runtime.bench.files import refuse_unwritable
from paceline_runtime.bench.report import device_text, table, write_json
from paceline_runtime.bench.shapes import find_shape
from paceline_runtime.bench.tuning.candidates import candidates
from paceline_runtime.bench.tuning.choice import Timing, Trial, Tuned, tune
from paceline_runtime.bench.tuning.matrices import Matrix, matrices_of
from paceline_runtime.bench.tuning.precompile import Job, compile_all, jobs
from paceline_runtime.bench.tuning.trial import Clock, DeviceTrial, Place, cuda_clock
from paceline_runtime.engine.build import pick_device, pick_dtype
from paceline_runtime.errors import ConfigError

_HEAD = ("product", "rows", "us", "TB/s", "library us", "tile")
_MOST_PROCESSES = 16
_CUT_DTYPES = (torch.float16, torch.bfloat16)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write what the flags ask for."""
    device = pick_device(args.device)
    dtype = pick_dtype(args.dtype, device)
    _refuse(args, device, dtype)
    name = torch.cuda.get_device_name(device)
    out = Path(args.out or f"{file_name(name)}.json")
    refuse_unwritable("--out", out)
    num_processes = min(_MOST_PROCESSES, os.cpu_count() or 1)
    with torch.cuda.device(device):
        tuner = Tuner(name, Place(device, dtype), cuda_clock, lambda some, place: compile_all(some, place, num_processes))
        tuner.measure(args, out)
    return 0


@dataclass(frozen=True)
class Tuner:
    """A device by its name, how its time is told, and how kernels are compiled before: the number of those it cannot run."""

    device_name: str
    place: Place
    clock: Clock
    compile: Callable[[Sequence[Job], Place], int]

    def measure(self, args: argparse.Namespace, out: Path) -> None:
        """From the shape to the file, telling on the way what is found."""
        shape, place = find_shape(args.shape), self.place
        matrices = matrices_of(args)
        _free_model(place.device)
        print(f"{shape.name}: {len(matrices)} products of a decode step, {', '.join(args.algorithms)}")
        print(device_text(place.device), flush=True)
        some = jobs(matrices, args.rows, candidates)
        num_unable = self.compile(some, place)
        print(f"{len(some)} kernels compiled, {num_unable} of them cannot run here", flush=True)
        found = tune_all(matrices, args.rows, lambda matrix: DeviceTrial(matrix, place, self.clock))
        print(table(_HEAD, [row for tuned in found for row in rows_of(tuned, place.dtype)]))
        cuts = table_of(found)
        out.write_text(to_json(cuts, self.device_name))
        print(f"{len(cuts.cuts)} cuts written: use them with --tiles {out}")
        if args.json:
            write_json(args.json, place.device, {"shape": shape.name, "products": [to_dict(one) for one in found]})


def _free_model(device: torch.device) -> None:
    """What was asked for its products makes room for them; its engines refer to it in circles."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def tune_all(matrices: Sequence[Matrix], rows: Sequence[int], trial_of: Callable[[Matrix], Trial]) -> list[Tuned]:
    """Every matrix with every cut that is worth a try, one trial after the other: each takes a good part of the memory."""
    found: list[Tuned] = []
    for number, matrix in enumerate(matrices, 1):
        found.append(tune(matrix, rows, trial_of(matrix), candidates(matrix)))
        print(f"{number} of {len(matrices)}: {matrix}, {found[-1].num_classes} different sums", flush=True)
    return found


def table_of(found: Sequence[Tuned]) -> TileTable:
    """All cuts in one table."""
    return TileTable({product: tile for tuned in found for product, tile in tuned.cuts().items()})


def rows_of(tuned: Tuned, dtype: torch.dtype) -> list[tuple[str, ...]]:
    """Rows under the table's head: the time of what goes into the table, the library's where that is faster."""
    num_bytes = tuned.matrix.outputs * tuned.matrix.columns * dtype.itemsize
    return [
        (
            str(tuned.matrix),
            str(rows),
            f"{_seconds(timing) * 1e6:.1f}",
            f"{num_bytes / _seconds(timing) / 1e12:.2f}",
            f"{timing.library_s * 1e6:.1f}",
            _tile_text(timing.tile),
        )
        for rows, timing in tuned.timings.items()
    ]


def to_dict(tuned: Tuned) -> dict[str, Any]:
    """For the JSON, in seconds; null where no cut can run."""
    matrix = tuned.matrix
    return {
        "kind": matrix.kind,
        "outputs": matrix.outputs,
        "columns": matrix.columns,
        "rows": [
            {"rows": rows, "cut_s": one.seconds, "library_s": one.library_s, "tile": _tile_text(one.tile)}
            for rows, one in tuned.timings.items()
        ],
    }


def _refuse(args: argparse.Namespace, device: torch.device, dtype: torch.dtype) -> None:
    problems = []
    if device.type != "cuda":
        problems.append(f"--device {device.type}: products are cut for GPUs, and a CPU's are not: measure on a GPU")
    if args.dtype != "auto" and dtype not in _CUT_DTYPES:
        problems.append(f"--dtype {args.dtype}: only products of float16 and bfloat16 are cut")
    if problems:
        raise ConfigError(problems)


def _seconds(timing: Timing) -> float:
    return timing.library_s if timing.tile is None or timing.seconds is None else timing.seconds


def _tile_text(tile: Tile | None) -> str:
    if tile is None:
        return "library"
    left = ", weights left" if tile.weights_left else ""
    return f"{tile.rows}x{tile.columns}, {tile.splits} parts, {tile.warps} warps, {tile.stages} stages{left}"
