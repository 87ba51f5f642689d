"""How products of up to 64 rows are launched on a GPU: programs stream tiles of weight rows past all rows of x.

The face calls it with the cut of the product; `jitted.py` holds what the kernels do. Reading weights bounds a product of few
rows. Measured on an H200 at the shapes of a 27B model: 3.9 to 4.1 TB/s, cuBLAS 3.4 to 4.0 (docs/perf-log.md).
"""

from __future__ import annotations

import torch
import triton

from paceline_kernels.skinny_linear.jitted import stream, sum_splits
from paceline_kernels.skinny_linear.tiles import MAX_ROWS, Tile


def stream_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, tile: Tile) -> torch.Tensor:
    """`skinny_linear` of the reference for float16 and bfloat16; sums are float32."""
    return _launch(x, weight, bias, tile, gated=False)


def stream_parts(x: torch.Tensor, weight: torch.Tensor, *, tile: Tile) -> torch.Tensor:
    """The sums over each of `tile.splits` parts of the columns, float32 [splits, M, N]; their order is the kernel's own."""
    out = torch.empty((tile.splits, x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    _stream_weight(x, weight, None, out, tile, gated=False)
    return out


def stream_gated(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, tile: Tile) -> torch.Tensor:
    """`skinny_gated_linear` of the reference for float16 and bfloat16; sums and the activation are float32."""
    return _launch(x, weight, bias, tile, gated=True)


def _launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tile: Tile, *, gated: bool) -> torch.Tensor:
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    width = num_outputs // 2 if gated else num_outputs
    out = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    if tile.splits == 1:
        _stream_weight(x, weight, bias, out, tile, gated=gated)
        return out
    partial = torch.empty((tile.splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    _stream_weight(x, weight, None, partial, tile, gated=gated)
    block = 1024
    sum_splits[(num_rows, triton.cdiv(width, block))](
        partial_ptr=partial,
        bias_ptr=bias,
        out_ptr=out,
        num_rows=num_rows,
        width=width,
        HAS_BIAS=bias is not None,
        GATED=gated,
        SPLITS=tile.splits,
        BLOCK=block,
    )
    return out


def _stream_weight(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, tile: Tile, *, gated: bool
) -> None:
    (num_rows, num_columns), num_outputs = x.shape, weight.shape[0]
    assert num_rows <= MAX_ROWS, f"{num_rows} rows are more than {MAX_ROWS}"
    assert weight.stride(1) == 1, "weights are read along their rows"
    x = x if x.stride(1) == 1 else x.contiguous()
    stream[(triton.cdiv(num_outputs, tile.rows), tile.splits)](
        x_ptr=x,
        weight_ptr=weight,
        bias_ptr=bias,
        out_ptr=out,
        num_rows=num_rows,
        num_outputs=num_outputs,
        num_columns=num_columns,
        x_stride=x.stride(0),
        weight_stride=weight.stride(0),
        HAS_BIAS=bias is not None,
        GATED=gated,
        PARTIAL=out.dim() == 3,
        IS_EVEN=num_columns % (tile.columns * tile.splits) == 0,
        WEIGHTS_LEFT=tile.weights_left,
        BLOCK_M=max(16, triton.next_power_of_2(num_rows)),
        BLOCK_N=tile.rows,
        BLOCK_K=tile.columns,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
