"""One Gated DeltaNet layer of a verify: the three Triton kernels against plain torch, steps with every kind of replay."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import replaying
from kernel_checks import assert_close, half, poisoned

from paceline_kernels.backend import Backend
from paceline_kernels.delta_step import DeltaMemory, DeltaWeights, delta_step
from paceline_kernels.gated_delta import Journal
from paceline_kernels.replay import Replay

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
SHARED, THREE = (2, 4, 8, 20), (1, 3, 24, 6)
REAL = {"27b": (16, 48, 128, 128), "35b": (16, 32, 128, 128)}


def weights_of(heads: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> DeltaWeights:
    key_heads, value_heads, key_dim, value_dim = heads
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return DeltaWeights(
        conv=torch.randn(channels, 4, dtype=dtype, device=device),
        log_rate=torch.randn(value_heads, device=device) * 0.5,
        rate_bias=torch.randn(value_heads, device=device),
        norm=torch.rand(value_dim, device=device) + 0.5,
        norm_eps=1e-6,
        num_key_heads=key_heads,
        num_value_heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )


def memory_of(weights: DeltaWeights, slots: int, journals: int, rows: int, dtype: torch.dtype, device: str) -> DeltaMemory:
    """Random states; journals hold NaN, since nothing may be read that no verify wrote."""
    key_heads, value_heads, channels = weights.num_key_heads, weights.num_value_heads, weights.widths[0]
    sizes = (key_heads, weights.key_dim), (value_heads, weights.value_dim), (value_heads,)
    return DeltaMemory(
        torch.randn(slots, value_heads, weights.key_dim, weights.value_dim, device=device) * 0.1,
        torch.randn(slots, 3, channels, device=device).to(dtype),
        Journal(*(torch.full((journals, rows, *size), torch.nan, device=device) for size in sizes)),
        torch.full((journals, rows, channels), torch.nan, dtype=dtype, device=device),
    )


def copied(memory: DeltaMemory) -> DeltaMemory:
    journal = Journal(*(x.clone() for x in vars(memory.journal).values()))
    return DeltaMemory(memory.recurrent.clone(), memory.conv.clone(), journal, memory.conv_journal.clone())


def compare(heads: tuple[int, int, int, int], widths: list[int], num_requests: int, device: str, tolerance: float) -> None:
    """Steps of up to 3 requests: outputs, states, snapshots, journals; the dummy's journal and spare rows stay poison."""
    torch.manual_seed(0)
    weights = weights_of(heads, half(device), device)
    memory = memory_of(weights, 7, 4, max(widths), half(device), device)
    ours, kept = copied(memory), torch.zeros(num_requests, dtype=torch.int64)
    size = sum(weights.widths)
    for step, width in enumerate(widths):
        projected = torch.randn(num_requests * width, size + 3, device=device).to(half(device))[:, :size]
        inside = torch.where(torch.tensor([True, False, True][:num_requests]), (kept + 1) // 2, 0)
        due = replaying([3, 1, 5][:num_requests], kept, inside, [6, 4, 2][:num_requests])
        due = Replay(*(column.to(device) for column in vars(due).values()))
        expected = delta_step(projected.contiguous(), width, weights, memory, due, backend=Backend.REFERENCE)

        out = delta_step(projected, width, weights, ours, due, backend=Backend.KERNEL)

        assert_close(expected, out, tolerance)
        assert_close(memory.recurrent[1:], ours.recurrent[1:], tolerance)
        assert torch.equal(memory.conv[1:], ours.conv[1:])
        written = slice(1, 1 + num_requests), slice(width)
        assert torch.equal(memory.conv_journal[written], ours.conv_journal[written])
        for name in ("keys", "values", "decays"):
            assert_close(getattr(memory.journal, name)[written], getattr(ours.journal, name)[written], tolerance)
        kept = (torch.arange(num_requests) + step) % width + 1
    assert ours.conv_journal[0].isnan().all()
    assert ours.journal.keys[0].isnan().all()


@pytest.mark.parametrize(
    "heads,widths,num_requests",
    [(SHARED, [1, 1], 3), (THREE, [3, 3], 3), (THREE, [8, 8], 3), (SHARED, [4, 1, 2], 2)],
    ids=["1", "3", "8", "4-1-2"],
)
def test_equals_the_reference(heads: tuple[int, int, int, int], widths: list[int], num_requests: int) -> None:
    """One row, a chunk, and an adaptive depth that verifies less than the journal has room for."""
    compare(heads, widths, num_requests, "cpu", 6e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", REAL.values(), ids=REAL.keys())
@pytest.mark.parametrize("widths", [[1, 1, 1], [4, 4, 4], [8, 8, 8], [8, 1, 4, 1]], ids=str)
def test_real_shapes(heads: tuple[int, int, int, int], widths: list[int]) -> None:
    """The released hybrids' heads."""
    compare(heads, widths, 3, "cuda", 6e-3)
