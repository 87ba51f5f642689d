"""What tests of kernels share: where they run, what they may not read, and how far they may be from their references."""

from __future__ import annotations

import math

import pytest
import torch
from gdn_recurrence import relative_rms

DEVICES = [pytest.param("cpu", id="interpreter"), pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)]
"""A kernel runs interpreted in the CPU suite and compiled in the GPU suite."""


def half(device: str) -> torch.dtype:
    """The 16-bit dtype to test with: Triton's interpreter cuts bfloat16 instead of rounding, and multiplies its bits."""
    return torch.bfloat16 if device == "cuda" else torch.float16


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN: a kernel that leaves a place out, or reads one too many, shows."""
    for name in ("empty", "empty_like"):
        plain = getattr(torch, name)

        def poison(*args, plain=plain, **kwargs):
            out = plain(*args, **kwargs)
            return out.fill_(math.nan) if out.is_floating_point() else out

        monkeypatch.setattr(torch, name, poison)


def assert_close(expected: torch.Tensor, actual: torch.Tensor, tolerance: float) -> None:
    """Relative RMS, no NaN."""
    assert expected.shape == actual.shape
    assert not actual.isnan().any(), "NaN came out"
    assert relative_rms(actual.double().cpu(), expected.double().cpu()) < tolerance
