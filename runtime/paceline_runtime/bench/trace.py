"""What a GPU did in some steps: how long it was busy, how long it stood idle between kernels, and which kernels it ran.

`step` calls it. Torch's profiler makes the record, as a Chrome trace; everything else here is arithmetic over its events. A CPU
has no such record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from paceline_runtime.bench.timing import synchronize

_KERNEL, _COPIES = "kernel", ("gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class KernelTime:
    """One kernel, or kind of copy, in a step: how often it was launched and how long it ran in all."""

    name: str
    launches: float
    seconds: float


@dataclass(frozen=True)
class StepTrace:
    """Means over the traced steps. Kernels that overlap are busy once; `idle_share` is of the time from first to last."""

    num_steps: int
    busy_s: float
    idle_share: float
    num_kernels: float
    kernels: tuple[KernelTime, ...]


def trace_steps(run_steps: Callable[[], object], num_steps: int, device: torch.device) -> StepTrace | None:
    """Record a call that runs `num_steps` steps; None on a CPU."""
    if device.type != "cuda":
        return None
    return read_trace(record(run_steps, device, ProfilerActivity.CUDA), num_steps)


def record(call: Callable[[], object], device: torch.device, activity: ProfilerActivity) -> list[dict[str, Any]]:
    """The events of a call, as torch's profiler writes them: `cat`, `name`, `ts` and `dur` in microseconds."""
    synchronize(device)
    with profile(activities=[activity]) as profiler:
        call()
        synchronize(device)
    with TemporaryDirectory(prefix="paceline-trace-") as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text())["traceEvents"]
    return events


def read_trace(events: Iterable[dict[str, Any]], num_steps: int) -> StepTrace:
    """The device's part of a record of `num_steps` steps. Raises ValueError when it holds no kernel."""
    device = [event for event in events if event.get("cat") in (_KERNEL, *_COPIES)]
    if not any(event["cat"] == _KERNEL for event in device):
        raise ValueError("the profiler recorded no kernel: is another profiler attached to this GPU?")
    spans = [(event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6) for event in device]
    busy = busy_s(spans)
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return StepTrace(
        num_steps=num_steps,
        busy_s=busy / num_steps,
        idle_share=1.0 - busy / whole,
        num_kernels=sum(event["cat"] == _KERNEL for event in device) / num_steps,
        kernels=_by_name(device, num_steps),
    )


def busy_s(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of spans (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _by_name(events: Sequence[dict[str, Any]], num_steps: int) -> tuple[KernelTime, ...]:
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        durations[event["name"]].append(event["dur"] * 1e-6)
    found = [KernelTime(name, len(each) / num_steps, sum(each) / num_steps) for name, each in durations.items()]
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds))
