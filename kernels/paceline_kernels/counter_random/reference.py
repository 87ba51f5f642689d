"""Uniform and Gumbel noise from counters, in int64 torch arithmetic: equal bits on every device and in every batch.

The generator is SplitMix64's finalizer (Steele, Lea, Flood 2014, doi 10.1145/2660193.2660195) absorbing one word at a time.
The face calls it. Streams of different purposes must never meet: a draft drawn with the noise
that later accepts it biases the output (vLLM #54282).
"""

from __future__ import annotations

import torch

PROPOSAL = 1
ACCEPT = 2
DRAW = 3

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit word
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1


def mix_seed(seed: int, choice: int) -> int:
    """The key of a request's streams: `choice` separates the answers of one `n` > 1 call. A signed 64-bit integer."""
    word = _finalize_int(_finalize_int((seed + _GOLDEN) & _MASK_64) ^ ((choice * _GOLDEN) & _MASK_64))
    return word - (1 << 64) if word >> 63 else word


def uniform(keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor | None = None) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64, of the broadcast shape of `keys`, `positions` and `index` (all int64).

    `positions` is the absolute position of the token being decided; `index` (a token id) separates draws at one position.
    """
    bits = _absorb(_absorb(keys, positions), torch.full_like(positions, purpose))
    if index is not None:
        bits = _absorb(bits, index)
    # 52 bits and a half fill float64's 53; one bit more, and the largest would round to 1, whose Gumbel noise is infinite.
    return (_shift(bits, 12).to(torch.float64) + 0.5) * 2.0**-52


def gumbel(keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float64: argmax over `index` of log p + gumbel is a draw from p, in whatever order p is listed."""
    return -torch.log(-torch.log(uniform(keys, positions, purpose, index)))


def _absorb(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    mixed = (state ^ (word * _GOLDEN)) + _GOLDEN
    mixed = (mixed ^ _shift(mixed, 30)) * _MIX_1
    mixed = (mixed ^ _shift(mixed, 27)) * _MIX_2
    return mixed ^ _shift(mixed, 31)


def _shift(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Logical right shift; torch's is arithmetic on int64."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _finalize_int(word: int) -> int:
    word = ((word ^ (word >> 30)) * (_MIX_1 & _MASK_64)) & _MASK_64
    word = ((word ^ (word >> 27)) * (_MIX_2 & _MASK_64)) & _MASK_64
    return word ^ (word >> 31)
