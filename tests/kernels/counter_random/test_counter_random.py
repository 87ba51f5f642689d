"""Counter-based noise at the ends of its range, reached by running the generator backwards."""

import math

import pytest
import torch
from kernel_checks import DEVICES

from paceline_kernels.backend import Backend
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


def keys_of(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 63), (1 << 63) - 1, shape)


SHAPES = {
    "numbers": (keys_of(1), torch.tensor([9]), torch.tensor([5])),
    "rows of ids": (keys_of(3, 1), torch.tensor([[4], [262_143], [0]]), torch.randint(0, 248_320, (3, 1_030))),
    "one row for all": (keys_of(2, 1), torch.tensor([[7]]), torch.arange(20)),
    "blocks of rows": (keys_of(2, 1, 1), torch.arange(6).view(2, 3, 1), torch.randint(0, 99, (2, 3, 5))),
    "columns of a table": (keys_of(4, 3)[:, 1:2], torch.arange(8).view(4, 2)[:, :1], torch.randint(0, 99, (4, 9))[:, 2:7]),
    "nothing": (keys_of(2, 1), torch.tensor([[7]]), torch.empty((2, 0), dtype=torch.int64)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_draws_what_the_reference_draws(shape: str, device: str) -> None:
    """Uniform numbers to the bit, with and without an index; Gumbel noise up to its logarithms."""
    keys, positions, index = (part.to(device) for part in SHAPES[shape])
    for given in (index, None):
        expected = uniform(keys, positions, DRAW, given, backend=Backend.REFERENCE)
        actual = uniform(keys, positions, DRAW, given, backend=Backend.KERNEL)

        assert expected.shape == actual.shape
        assert torch.equal(expected, actual)
    expected, actual = (gumbel(keys, positions, DRAW, index, backend=b) for b in (Backend.REFERENCE, Backend.KERNEL))
    torch.testing.assert_close(expected, actual, atol=1e-12, rtol=1e-12)
