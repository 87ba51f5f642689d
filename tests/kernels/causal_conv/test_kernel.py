"""The Triton verify of the causal convolution against its reference, at odd shapes and under every kind of replay."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import relative_rms, replaying

from paceline_kernels.backend import Backend
from paceline_kernels.causal_conv import verify_conv


def compare(device: str, dtype: torch.dtype, width: int, size: int, channels: int, tolerance: float) -> None:
    """Three steps of three requests: outputs up to rounding, states and journals to the bit; the journal's poison stays."""
    kind = dict(dtype=dtype, device=device)
    weight = torch.randn(channels, size, **kind)
    states, journal = torch.randn(7, size - 1, channels, **kind), torch.full((4, width, channels), torch.nan, **kind)
    ours, kept = (states.clone(), journal.clone()), torch.zeros(3, dtype=torch.int64)
    for step in range(3):
        x = torch.randn(3, width, channels + 5, **kind)[..., :channels]
        inside = torch.where(torch.tensor([True, False, True]), (kept + 1) // 2, 0)
        replay = replaying([3, 1, 5], kept, inside, [6, 4, 2])
        replay = type(replay)(*(column.to(device) for column in vars(replay).values()))
        expected = verify_conv(states, journal, replay, x, weight, backend=Backend.REFERENCE)

        out = verify_conv(*ours, replay, x, weight, backend=Backend.KERNEL)

        assert relative_rms(out.float(), expected.float()) < tolerance
        assert torch.equal(ours[0][1:], states[1:])
        assert torch.equal(ours[1][1:], journal[1:])
        kept = (torch.arange(3) + step) % width + 1
    assert ours[1][0].isnan().all(), "the dummy's journal was written"


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize(("size", "channels"), [(4, 40), (2, 300), (3, 17)])
def test_kernel_equals_reference_step_after_step(width: int, size: int, channels: int) -> None:
    compare("cpu", torch.float32, width, size, channels, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 4, 8])
def test_kernel_equals_reference_on_a_gpu(width: int) -> None:
    """The channels of the 27B, in bf16."""
    compare("cuda", torch.bfloat16, width, 4, 10_240, 4e-3)
