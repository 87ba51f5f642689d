"""The residual addition with its norm, and the gated activation: Triton against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, assert_close, half, poisoned

from paceline_kernels.add_norm import reference
from paceline_kernels.gated_act import reference as act_reference

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
SIZES = [pytest.param(1, 5, id="N1-H5"), pytest.param(3, 500, id="N3-H500"), pytest.param(9, 1024, id="N9-H1024")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_wide", [True, False], ids=["float32", "half"])
@pytest.mark.parametrize("rows,size", SIZES)
def test_add_norm(rows: int, size: int, is_wide: bool, device: str) -> None:
    """The sum to the bit, the norm up to rounding; what is added may be a part of wider rows."""
    from paceline_kernels.add_norm import kernel

    residual = torch.randn(rows, size, device=device).to(half(device))
    added = torch.randn(rows, size + 3, device=device).to(half(device))[:, :size]
    weight = torch.randn(size, device=device).to(torch.float32 if is_wide else half(device))
    expected_sum, expected = reference.add_norm(residual, added, weight, 1e-6)

    hidden, normed = kernel.add_norm(residual, added, weight, 1e-6)

    assert torch.equal(expected_sum, hidden)
    assert_close(expected, normed, 4e-3)
    parts = torch.randn(3, rows, size, device=device)
    assert_close(reference.add_norm(residual, parts, weight, 1e-6)[1], kernel.add_norm(residual, parts, weight, 1e-6)[1], 4e-3)
    assert_close(reference.norm(added, weight, 1e-6), kernel.norm(added, weight, 1e-6), 4e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows,width", [pytest.param(1, 3, id="N1-I3"), pytest.param(5, 1500, id="N5-I1500")])
def test_gated_act(rows: int, width: int, device: str) -> None:
    """Gate and up in turn, no more columns than there are."""
    from paceline_kernels.gated_act import kernel

    both = torch.randn(rows, 2 * width, device=device).to(half(device))
    assert_close(act_reference.gated_act(both), kernel.gated_act(both), 4e-3)
