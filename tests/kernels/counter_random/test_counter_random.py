"""Counter-based noise at the ends of its range, reached by running the generator backwards."""

import math

import pytest
import torch

from paceline_kernels.counter_random import DRAW, gumbel, uniform

WORD = 1 << 64
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _unshifted(word: int, count: int) -> int:
    """The x of x ^ (x >> count) = word."""
    found = word
    for _ in range(64 // count):
        found = word ^ (found >> count)
    return found


def _before(state: int, word: int) -> int:
    """The state that absorbing `word` turned into `state`."""
    mixed = _unshifted(state, 31) * pow(MIX_2, -1, WORD) % WORD
    mixed = _unshifted(mixed, 27) * pow(MIX_1, -1, WORD) % WORD
    return (_unshifted(mixed, 30) - GOLDEN) % WORD ^ word * GOLDEN % WORD


def _key_of(bits: int, *words: int) -> torch.Tensor:
    """The key from which the words lead to these bits."""
    for word in reversed(words):
        bits = _before(bits, word)
    return torch.tensor([bits - WORD if bits >> 63 else bits])


@pytest.mark.parametrize(("bits", "value"), [(0, 2.0**-53), (WORD // 2, 0.5 + 2.0**-53), (WORD - 1, 1 - 2.0**-53)])
def test_the_ends_of_the_range_are_inside_it(bits, value):
    """Neither 0 nor 1 is ever drawn, whatever the bits, so Gumbel noise is finite and no excluded token is drawn."""
    position, token = torch.tensor([9]), torch.tensor([5])
    key = _key_of(bits, 9, DRAW, 5)

    assert value == float(uniform(key, position, DRAW, token))
    assert math.isfinite(gumbel(key, position, DRAW, token))
    assert value == float(uniform(_key_of(bits, 9, DRAW), position, DRAW))
