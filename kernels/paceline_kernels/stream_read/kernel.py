"""A pure read of an array in Triton: 16 programs of 8 warps a multiprocessor, 8 KB of neighbouring bytes each at a time.

Measured on an H200, 4 GiB, programs a multiprocessor x warps: 4 x 4 read 3.76 TB/s, 8 x 8 4.29, 16 x 8 4.32. torch's own sum
stays below all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 2048
_PROGRAMS_PER_MULTIPROCESSOR = 16
_WARPS = 8


def stream_read(x: torch.Tensor) -> torch.Tensor:
    """The operation, one part a program."""
    count = 1
    if x.is_cuda:
        count = _PROGRAMS_PER_MULTIPROCESSOR * torch.cuda.get_device_properties(x.device).multi_processor_count
    partial = torch.empty(count, dtype=torch.int32, device=x.device)
    _stream_read[(count,)](
        x_ptr=x,
        partial_ptr=partial,
        size=x.numel(),
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return partial


@triton.jit
def _stream_read(x_ptr, partial_ptr, size, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    total = tl.zeros([BLOCK], tl.int32)
    for start in range(program * BLOCK, size, step):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + place, mask=place < size, other=0, eviction_policy="evict_first")
    tl.store(partial_ptr + program, tl.sum(total))
