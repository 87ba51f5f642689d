"""Clocks of the bench: device time by events on a GPU, wall time on a CPU. The measurements read them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_WARM_UPS = 2


def median_s(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call on the device, after a few that do not count."""
    for _ in range(_WARM_UPS):
        call()
    measure = _cuda_s if device.type == "cuda" else _wall_s
    return statistics.median(measure(call) for _ in range(repeats))


def synchronize(device: torch.device) -> None:
    """Wait for the device; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _wall_s(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _cuda_s(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
