"""An order of logits inside Triton kernels that is the same everywhere: the larger first, ties by id.

Kernels that look for the likeliest ids call it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered_key(value, index):
    """int64 that orders as (float32 value descending, index ascending)."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    # -0.0 and 0.0 are one value.
    ordered = tl.where(ordered == -1, 0, ordered)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def index_of(key):
    """The index, int64, that a key was made of."""
    return 0x7FFFFFFF - (key & 0xFFFFFFFF)
