"""Products of few rows: the Triton kernel against its reference, whatever the cut."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, assert_close, half, poisoned

from paceline_kernels.skinny_linear import Product, Tile, reference, shipped_tiles

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
@pytest.mark.parametrize(("splits", "weights_left"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("rows,outputs,columns", SHAPES)
def test_equals_the_reference(rows: int, outputs: int, columns: int, splits: int, weights_left: bool, device: str) -> None:
    """Rows, outputs and columns that no tile divides; rows of x that are not dense; with and without a bias."""
    from paceline_kernels.skinny_linear import streaming

    x, weight, bias = operands(rows, outputs, columns, device)
    tile = Tile(rows=32, columns=32, splits=splits, warps=4, stages=2, weights_left=weights_left)
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


@pytest.mark.gpu
def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    """As shipped for this device: each measured product of 1 to 64 rows gives the first row the same bits."""
    from paceline_kernels.skinny_linear import streaming

    table = shipped_tiles(torch.cuda.get_device_name())
    measured = sorted({(cut.outputs, cut.columns, cut.kind) for cut in table.cuts})
    if not measured:
        pytest.skip("no table is shipped for this device")
    launch = {"whole": streaming.stream_rows, "parts": streaming.stream_parts, "gated": streaming.stream_gated}
    for outputs, columns, kind in measured:
        x, weight, _ = operands(64, min(outputs, 34816), columns, "cuda")
        tiles = {rows: table.tile(Product(rows, outputs, columns, kind)) for rows in (1, 4, 8, 16, 32, 64)}
        found = [launch[kind](x[:rows], weight, tile=tile)[..., :1, :] for rows, tile in tiles.items() if tile is not None]
        assert len(found) > 1
        assert all(torch.equal(found[0], other) for other in found), (outputs, columns, kind)
