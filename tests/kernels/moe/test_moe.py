"""Linear layers by expert: each row meets its own expert's weights, rows of no expert meet none."""

from __future__ import annotations

import pytest
import torch

from paceline_kernels.moe import grouped_linear


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(5, 6), (8, 12)], ids=str)
@pytest.mark.parametrize("counts", [[3, 0, 4, 1], [0, 0, 0, 0], [0, 0, 0, 9], [5, 1, 0, 0]])
def test_rows_meet_their_expert(dtype: torch.dtype, counts: list[int], sizes: tuple[int, int]) -> None:
    """Experts without rows, and trailing rows without an expert, which come out as 0 even where they hold NaN."""
    x, weights = torch.randn(9, sizes[1], dtype=dtype), torch.randn(4, *sizes, dtype=dtype)
    total = sum(counts)
    x[total:] = torch.nan
    experts = torch.arange(4).repeat_interleave(torch.tensor(counts))

    out = grouped_linear(x, weights, torch.tensor(counts).cumsum(0).to(torch.int32))

    expected = (
        torch.stack([weights[e] @ row for e, row in zip(experts, x, strict=False)]) if total else x.new_zeros(0, sizes[0])
    )
    torch.testing.assert_close(out[:total], expected)
    assert torch.equal(out[total:], torch.zeros(9 - total, sizes[0], dtype=dtype))
