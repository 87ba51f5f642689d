"""The parts of a step that its kernels belong to, told by their names, and the bytes that each part has to move.

`step --profile` calls it. A trace says how long a kernel ran and not what it read, so bytes are known by part: the kernels of
one part share them. A part that moves only activations has none, and no limit but the time that a launch takes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_runtime.bench.trace import KernelTime, StepTrace
from paceline_runtime.bench.traffic import StepTraffic

PROFILE_HEAD = ("part . kernel", "launches", "us a step", "of all", "GB", "of limit")
_LEAST_SHARE = 0.005
_LONGEST_NAME = 72
_REST = "activations and the rest"
_PATTERNS = {
    "attention": r"attend|attention|fmha|flash|_sum_parts|_join_parts",
    "recurrent states": r"^_?verify_|^normalise|_prepare_rows|_finish_rows",
    "matrices": r"gemm|gemv|nvjet|cutlass|cublas|splitk|dot_kernel|^stream|^sum_splits",
    "choices": r"topk|top_k|radix|bitonic|sort|argmax|argmin|softmax|multinomial|_select_path|_block_maxima|_pick",
}
"""`choices` are of tokens and of experts. The first pattern that is found in a name counts."""
_TRAFFIC = {
    "matrices": ("weight_bytes", "draft_bytes"),
    "attention": ("kv_bytes",),
    "recurrent states": ("state_bytes",),
}


@dataclass(frozen=True)
class Part:
    """One part of a step; `num_bytes` is None where nothing but activations moves."""

    name: str
    num_bytes: int | None
    kernels: tuple[KernelTime, ...]

    @property
    def seconds(self) -> float:
        """What its kernels take in all, which is more than its share of a step where kernels overlap."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def launches(self) -> float:
        """Launches of its kernels."""
        return sum(kernel.launches for kernel in self.kernels)

    def share_of_limit(self, bytes_per_s: float) -> float | None:
        """How near it comes to moving its bytes at full speed; None where it has none."""
        return self.num_bytes / bytes_per_s / self.seconds if self.num_bytes else None


def part_of(kernel: str) -> str:
    """The part that a kernel of this name belongs to."""
    found = (part for part, pattern in _PATTERNS.items() if re.search(pattern, kernel, re.IGNORECASE))
    return next(found, _REST)


def parts_of(trace: StepTrace, traffic: StepTraffic) -> list[Part]:
    """A traced step by its parts, the longest first; parts without a kernel are left out."""
    kernels: dict[str, list[KernelTime]] = {}
    for kernel in trace.kernels:
        kernels.setdefault(part_of(kernel.name), []).append(kernel)
    parts = [Part(name, _num_bytes(name, traffic), tuple(found)) for name, found in kernels.items()]
    return sorted(parts, key=lambda part: -part.seconds)


def profile_rows(parts: Sequence[Part], bytes_per_s: float) -> list[tuple[str, ...]]:
    """Rows under `PROFILE_HEAD`: each part, then its kernels; those of little time are one row."""
    whole = sum(part.seconds for part in parts)
    rows: list[tuple[str, ...]] = []
    for part in parts:
        share = part.share_of_limit(bytes_per_s)
        moved = ("-", "-") if share is None else (f"{(part.num_bytes or 0) / 1e9:.2f}", f"{share:.2f}")
        rows.append((part.name, *_time_cells(part.launches, part.seconds, whole), *moved))
        long = [kernel for kernel in part.kernels if kernel.seconds >= _LEAST_SHARE * whole]
        rows += [(f". {_short(one.name)}", *_time_cells(one.launches, one.seconds, whole), "", "") for one in long]
        if rest := part.kernels[len(long) :]:
            times = _time_cells(sum(one.launches for one in rest), sum(one.seconds for one in rest), whole)
            rows.append((f". {len(rest)} more", *times, "", ""))
    return rows


def _num_bytes(name: str, traffic: StepTraffic) -> int | None:
    return sum(getattr(traffic, field) for field in _TRAFFIC[name]) if name in _TRAFFIC else None


def _time_cells(launches: float, seconds: float, whole: float) -> tuple[str, ...]:
    return f"{launches:,.1f}", f"{seconds * 1e6:,.1f}", f"{seconds / whole:.3f}"


def _short(name: str) -> str:
    """Without the namespaces, and cut: template arguments of a library's kernel fill a screen."""
    plain = re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name)
    return plain if len(plain) <= _LONGEST_NAME else plain[: _LONGEST_NAME - 3] + "..."
