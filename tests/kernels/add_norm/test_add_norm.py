"""The residual addition with its norm, and the gated activation: Triton against plain torch."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, assert_close, half, poisoned

from paceline_kernels.add_norm import add_norm, norm
from paceline_kernels.backend import Backend
from paceline_kernels.gated_act import gated_act

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
SIZES = [pytest.param(1, 5, id="N1-H5"), pytest.param(3, 500, id="N3-H500"), pytest.param(9, 1024, id="N9-H1024")]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_wide", [True, False], ids=["float32", "half"])
@pytest.mark.parametrize("rows,size", SIZES)
def test_add_norm(rows: int, size: int, is_wide: bool, device: str) -> None:
    """The sum to the bit, the norm up to rounding; what is added may be a part of wider rows."""
    residual = torch.randn(rows, size, device=device).to(half(device))
    added = torch.randn(rows, size + 3, device=device).to(half(device))[:, :size]
    weight = torch.randn(size, device=device).to(torch.float32 if is_wide else half(device))
    expected_sum, expected = add_norm(residual, added, weight, 1e-6, backend=Backend.REFERENCE)

    hidden, normed = add_norm(residual, added, weight, 1e-6, backend=Backend.KERNEL)

    assert torch.equal(expected_sum, hidden)
    assert_close(expected, normed, 4e-3)
    parts = torch.randn(3, rows, size, device=device)
    for several in (False, True):
        what = (residual, parts if several else added, weight, 1e-6)
        assert_close(add_norm(*what, backend=Backend.REFERENCE)[1], add_norm(*what, backend=Backend.KERNEL)[1], 4e-3)
    alone = (added, weight, 1e-6)
    assert_close(norm(*alone, backend=Backend.REFERENCE), norm(*alone, backend=Backend.KERNEL), 4e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows,width", [pytest.param(1, 3, id="N1-I3"), pytest.param(5, 1500, id="N5-I1500")])
def test_gated_act(rows: int, width: int, device: str) -> None:
    """Gate and up in turn, no more columns than there are."""
    both = torch.randn(rows, 2 * width, device=device).to(half(device))
    assert_close(gated_act(both, backend=Backend.REFERENCE), gated_act(both, backend=Backend.KERNEL), 4e-3)
