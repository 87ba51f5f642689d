"""From projected rows to queries and pages: Triton against plain torch, for each family's kind of heads."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, assert_close, half, poisoned

from paceline_kernels.backend import Backend
from paceline_kernels.place_heads import HeadLayout, HeadNorms, KvCells, place_heads
from paceline_kernels.rotary import rotary_table

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
LAYOUTS = [
    pytest.param(HeadLayout(3, 1, 20), 20, False, False, id="llama-D20"),
    pytest.param(HeadLayout(4, 2, 16), 16, True, False, id="qwen3-D16"),
    pytest.param(HeadLayout(6, 2, 32, gated=True), 8, True, True, id="qwen3_5-D32-R8"),
]
GPU_LAYOUTS = [pytest.param(HeadLayout(24, 4, 256, gated=True), 64, True, True, id="27b", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout,rotary_dim,has_norms,wide_norms", LAYOUTS)
def test_queries_and_pages(layout: HeadLayout, rotary_dim: int, has_norms: bool, wide_norms: bool, device: str) -> None:
    compare(layout, rotary_dim, has_norms, wide_norms, device)


@pytest.mark.parametrize("layout,rotary_dim,has_norms,wide_norms", GPU_LAYOUTS)
def test_real_shapes(layout: HeadLayout, rotary_dim: int, has_norms: bool, wide_norms: bool) -> None:
    compare(layout, rotary_dim, has_norms, wide_norms, "cuda")


def compare(layout: HeadLayout, rotary_dim: int, has_norms: bool, wide_norms: bool, device: str) -> None:
    """Rows land at their places and nowhere else; values to the bit, keys and queries up to rounding."""
    torch.manual_seed(0)
    page, dim = 4, layout.head_dim
    columns = layout.q_width + 2 * layout.num_kv_heads * dim
    projected = torch.randn(5, columns + 3, device=device).to(half(device))[:, :columns]
    places = torch.tensor([9, 4, 17, 2, 19], device=device)
    norms = (
        HeadNorms(*(torch.rand(dim, device=device).to(torch.float32 if wide_norms else half(device)) + 0.5 for _ in "qk"), 1e-6)
        if has_norms
        else None
    )
    frequencies = 1.0 / 100.0 ** (torch.arange(rotary_dim // 2, device=device) / (rotary_dim // 2))
    table = rotary_table(torch.tensor([0, 1, 70, 900, 5], device=device), frequencies, 1.0, half(device))
    keys, values = (torch.full((5, page, layout.num_kv_heads, dim), 7.0, device=device).to(half(device)) for _ in "kv")
    ours = keys.clone(), values.clone()
    dense = projected.contiguous()
    q = place_heads(dense, layout, norms, table, KvCells(keys, values, places), backend=Backend.REFERENCE)

    out = place_heads(projected, layout, norms, table, KvCells(*ours, places), backend=Backend.KERNEL)

    assert_close(q, out, 8e-3)
    assert torch.equal(values, ours[1])
    assert_close(keys, ours[0], 8e-3)
    untouched = torch.ones(5 * page, dtype=torch.bool, device=device)
    untouched[places] = False
    assert (ours[0].flatten(0, 1)[untouched] == 7.0).all()
