"""Window attention over a ring: the reference against attention over all positions, the kernel against the reference."""

from __future__ import annotations

import pytest
import torch

from paceline_kernels.backend import Backend
from paceline_kernels.window_attention import Rings, ring_positions, window_attention

WIDTH, HEAD_DIM = 5, 16


def case(lengths: list[int], ring_size: int, heads: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, rings with NaN wherever nothing was written, rows, lengths, block keys and values, and the full context."""
    num_heads, num_kv_heads = heads
    batch, longest = len(lengths), max(lengths) + 1
    q = torch.randn(batch, WIDTH, num_heads, HEAD_DIM, dtype=dtype)
    context = torch.randn(2, batch, longest, num_kv_heads, HEAD_DIM, dtype=dtype)
    block = torch.randn(2, batch, WIDTH, num_kv_heads, HEAD_DIM, dtype=dtype)
    rings = torch.full((2, batch + 2, ring_size, num_kv_heads, HEAD_DIM), torch.nan, dtype=dtype)
    rows = torch.arange(batch) + 2
    for index, length in enumerate(lengths):
        for position in range(length):
            rings[:, rows[index], position % ring_size] = context[:, index, position]
    return q, rings, rows, torch.tensor(lengths), block, context


def expected(q: torch.Tensor, lengths: list[int], block: torch.Tensor, context: torch.Tensor, window: int) -> torch.Tensor:
    """Softmax over every position less than `window` away, one query at a time."""
    out = torch.empty_like(q)
    group = q.shape[2] // block.shape[3]
    for b, length in enumerate(lengths):
        keys, values = (torch.cat((context[side, b, :length], block[side, b])) for side in (0, 1))
        for j in range(WIDTH):
            near = (torch.arange(length + WIDTH) - (length + j)).abs() < window
            for head in range(q.shape[2]):
                scores = keys[near, head // group] @ q[b, j, head] / HEAD_DIM**0.5
                out[b, j, head] = torch.softmax(scores, 0) @ values[near, head // group]
    return out


@pytest.mark.parametrize("window", [2, 3, 20, 200])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 1)], ids=str)
def test_reference_sees_exactly_the_window(window: int, heads: tuple[int, int]) -> None:
    """Empty, short, full and wrapped rings in one batch; what was never written is never read."""
    lengths = [0, 1, window - 1, window, window + 7, 3 * window + 70]
    q, rings, rows, device_lengths, block, context = case(lengths, window + 8, heads, torch.float64)

    ours = window_attention(q, Rings(*rings, rows, device_lengths), *block, window)

    torch.testing.assert_close(ours, expected(q, lengths, block, context, window))


@pytest.mark.parametrize("window", [2, 20, 130])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (6, 1)], ids=str)
def test_kernel_equals_reference(window: int, heads: tuple[int, int]) -> None:
    """Rings that are no multiple of the key block, grouped heads, NaN outside the window."""
    lengths = [0, 1, window + 7, 3 * window + 70]
    q, rings, rows, device_lengths, block, _ = case(lengths, window + 8, heads, torch.float32)

    ours, theirs = (
        window_attention(q, Rings(*rings, rows, device_lengths), *block, window, backend=backend)
        for backend in (Backend.KERNEL, Backend.REFERENCE)
    )

    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_ring_positions_are_the_last_of_their_slot() -> None:
    """Slot s holds the greatest position below the length that is s modulo the ring; negative where there is none."""
    positions = ring_positions(torch.tensor([0, 3, 10, 23]), 10)

    assert positions[0].max() < 0
    assert positions[1].tolist()[:3] == [0, 1, 2]
    assert positions[1, 3:].max() < 0
    assert positions[2].tolist() == list(range(10))
    assert positions[3].tolist() == [20, 21, 22, *range(13, 20)]
