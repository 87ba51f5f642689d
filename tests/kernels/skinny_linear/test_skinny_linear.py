"""Products of few rows: the Triton kernel against its reference, whatever the cut."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, assert_close, half, poisoned

from paceline_kernels.skinny_linear import Tile, reference

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
SHAPES = [
    pytest.param(1, 64, 64, id="M1-N64-K64"),
    pytest.param(3, 50, 72, id="M3-N50-K72"),
    pytest.param(17, 130, 200, id="M17-N130-K200"),
    pytest.param(64, 34, 96, id="M64-N34-K96"),
]


def operands(rows: int, outputs: int, columns: int, device: str) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    kind = dict(dtype=half(device), device=device)
    wide = torch.randn(rows, columns + 8, **kind)[:, :columns]
    return wide, torch.randn(outputs, columns, **kind), torch.randn(outputs, **kind)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("rows,outputs,columns", SHAPES)
def test_equals_the_reference(rows: int, outputs: int, columns: int, splits: int, device: str) -> None:
    """Rows, outputs and columns that no tile divides; rows of x that are not dense; with and without a bias."""
    from paceline_kernels.skinny_linear import streaming

    x, weight, bias = operands(rows, outputs, columns, device)
    tile = Tile(rows=32, columns=32, splits=splits, warps=4, stages=2)
    parts = streaming.stream_parts(x, weight, tile=tile)
    assert_close(reference.linear_parts(x, weight, splits).sum(0), parts.sum(0), 4e-3)
    assert len(parts) == splits
    for given in (None, bias):
        expected = reference.skinny_linear(x.float(), weight.float(), None if given is None else given.float())
        assert_close(expected, streaming.stream_rows(x, weight, given, tile=tile), 4e-3)
        expected = reference.skinny_gated_linear(x, weight, given)
        assert_close(expected, streaming.stream_gated(x, weight, given, tile=tile), 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 32, 64])
@pytest.mark.parametrize("outputs,columns", [(16480, 5120), (5120, 6144), (34816, 5120), (5120, 17408), (248320, 5120)])
def test_real_shapes(outputs: int, columns: int, rows: int) -> None:
    """The matrices of a 27B model, against cuBLAS in float32."""
    from paceline_kernels.skinny_linear import streaming

    x, weight, _ = operands(rows, outputs, columns, "cuda")
    tile = Tile(rows=64, columns=128, splits=2 if columns > 6000 else 1, warps=4, stages=3)
    assert_close(reference.skinny_linear(x.float(), weight.float()), streaming.stream_rows(x, weight, tile=tile), 4e-3)
