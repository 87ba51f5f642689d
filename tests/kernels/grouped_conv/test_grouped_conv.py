"""The grouped dynamic convolution: the reference against its definition, the Triton kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from paceline_kernels.backend import Backend
from paceline_kernels.grouped_conv import grouped_conv

SHAPES = [(1, 8, 48, 16, 2), (3, 5, 63, 9, 3), (2, 2, 300, 4, 1), (2, 3, 32, 32, 5)]


def inputs(shape: tuple[int, int, int, int, int], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """x, delta as a strided view of two sides, base."""
    batch, width, hidden, group_size, taps = shape
    delta = torch.randn(batch, width, 2, taps, hidden // group_size, dtype=dtype)[:, :, 1]
    return torch.randn(batch, width, hidden, dtype=dtype), delta, torch.randn(taps, hidden, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reference_is_the_sum_over_taps(shape: tuple[int, int, int, int, int]) -> None:
    """Element by element as the method states it."""
    x, delta, base = inputs(shape, torch.float64)
    batch, width, _, group_size, taps = shape
    expected = torch.zeros_like(x)
    for b in range(batch):
        for i in range(width):
            for t in range(min(taps, i + 1)):
                kernel = base[t] + delta[b, i, t].repeat_interleave(group_size)
                expected[b, i] += kernel * x[b, i - t]

    torch.testing.assert_close(grouped_conv(x, delta, base), expected)


def test_rows_of_one_block_do_not_reach_another() -> None:
    """The first row of a block is convolved with nothing before it, whatever stands beside it in the batch."""
    x, delta, base = inputs((4, 6, 32, 8, 3))

    together = grouped_conv(x, delta, base)

    alone = torch.cat([grouped_conv(x[b : b + 1], delta[b : b + 1], base) for b in range(4)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_equals_reference(shape: tuple[int, int, int, int, int]) -> None:
    """Odd widths, hidden sizes past one block, strided kernels."""
    case = inputs(shape)

    ours, theirs = (grouped_conv(*case, backend=backend) for backend in (Backend.KERNEL, Backend.REFERENCE))

    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
