"""The same noise inside Triton kernels: what `reference.py` draws, bit for bit up to the logarithm's rounding.

Kernels that draw call it; keys, positions and indices are int64 blocks of one shape.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform_noise(key, position, PURPOSE: tl.constexpr):
    """In (0, 1), float64, at `position`."""
    return _to_unit(_stream(key, position, PURPOSE))


@triton.jit
def indexed_uniform_noise(key, position, index, PURPOSE: tl.constexpr):
    """In (0, 1), float64, of `index` (a token id) at `position`."""
    return _to_unit(_absorb(_stream(key, position, PURPOSE), index))


@triton.jit
def gumbel_noise(key, position, index, PURPOSE: tl.constexpr):
    """Standard Gumbel noise, float64, of `index` (a token id) at `position`."""
    return -tl.log(-tl.log(indexed_uniform_noise(key, position, index, PURPOSE)))


@triton.jit
def _stream(key, position, PURPOSE: tl.constexpr):
    return _absorb(_absorb(key, position), position * 0 + PURPOSE)


@triton.jit
def _to_unit(bits):
    return (_shift(bits, 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _absorb(state, word):
    mixed = (state ^ (word * -7046029254386353131)) - 7046029254386353131
    mixed = (mixed ^ _shift(mixed, 30)) * -4658895280553007687
    mixed = (mixed ^ _shift(mixed, 27)) * -7723592293110705685
    return mixed ^ _shift(mixed, 31)


@triton.jit
def _shift(bits, COUNT: tl.constexpr):
    return (bits >> COUNT) & ((1 << (64 - COUNT)) - 1)
