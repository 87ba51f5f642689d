"""What the device can do at best, measured in the same run as the steps that are compared with it.

The measurements call it. A copy counts the bytes read and written; a pure read is the limit of streaming weights.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from paceline_kernels.stream_read import stream_read
from paceline_runtime.bench.timing import median_s

_CUDA_BYTES = 4 << 30
_CPU_BYTES = 256 << 20
_REPEATS = 11


@dataclass(frozen=True)
class Limits:
    """Bytes a second: of a copy, read and written together, and of a pure read."""

    copy_bytes_per_s: float
    read_bytes_per_s: float


def measure_limits(device: torch.device, num_bytes: int | None = None) -> Limits:
    """Stream an array far larger than any cache, a few times; the median."""
    is_cuda = device.type == "cuda"
    num_bytes = num_bytes or (_CUDA_BYTES if is_cuda else _CPU_BYTES)
    source = torch.ones(num_bytes // 4, dtype=torch.int32, device=device)
    copy_s = median_s(functools.partial(torch.empty_like(source).copy_, source), device, _REPEATS)
    read_s = median_s(functools.partial(stream_read, source), device, _REPEATS)
    return Limits(2 * source.nbytes / copy_s, source.nbytes / read_s)
