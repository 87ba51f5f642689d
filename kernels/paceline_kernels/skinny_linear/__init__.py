"""Products of few rows with a large matrix: `x W^T + b`, the same as sums over parts of the columns, and the gated activation.

Dense weights call it. How a product is cut was measured (`tiles.py`); a product that nobody measured, and one of more than 64
rows, goes to torch's library.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.gated_act import gated_act
from paceline_kernels.skinny_linear import reference
from paceline_kernels.skinny_linear.tiles import (
    MAX_ROWS,
    NO_TILES,
    ROW_BUCKETS,
    Kind,
    Product,
    Tile,
    TileTable,
    file_name,
    read_tiles,
    shipped_tiles,
    to_json,
)

__all__ = [
    "MAX_ROWS",
    "NO_TILES",
    "ROW_BUCKETS",
    "Kind",
    "Product",
    "Tile",
    "TileTable",
    "file_name",
    "read_tiles",
    "shipped_tiles",
    "skinny_gated_linear",
    "skinny_linear",
    "skinny_partial_linear",
    "to_json",
]


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    tiles: TileTable,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """x [M, K], weight [N, K], bias [N] or None: [M, N] in x's dtype, summed in at least float32."""
    tile = _tile(x, weight, tiles, backend, "whole")
    if tile is None:
        return reference.skinny_linear(x, weight, bias)
    from paceline_kernels.skinny_linear import streaming

    return streaming.stream_rows(x, weight, bias, tile=tile)


def skinny_partial_linear(
    x: torch.Tensor, weight: torch.Tensor, *, tiles: TileTable, backend: Backend = Backend.AUTO
) -> torch.Tensor:
    """`x W^T` to be added to something: [M, N] in x's dtype, or sums over parts of the columns, float32 [parts, M, N]."""
    tile = _tile(x, weight, tiles, backend, "parts")
    if tile is None:
        return reference.skinny_linear(x, weight)
    from paceline_kernels.skinny_linear import streaming

    if tile.splits == 1:
        return streaming.stream_rows(x, weight, tile=tile)
    return streaming.stream_parts(x, weight, tile=tile)


def skinny_gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    tiles: TileTable,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """`silu(gate) * up` of a weight [2 I, K] and bias [2 I] whose row 2i is gate i, row 2i + 1 up i: x [M, K] to [M, I]."""
    tile = _tile(x, weight, tiles, backend, "gated")
    if tile is None:
        return gated_act(reference.skinny_linear(x, weight, bias), backend=backend)
    from paceline_kernels.skinny_linear import streaming

    return streaming.stream_gated(x, weight, bias, tile=tile)


def _tile(x: torch.Tensor, weight: torch.Tensor, tiles: TileTable, backend: Backend, kind: Kind) -> Tile | None:
    if x.dtype not in (torch.float16, torch.bfloat16) or not runs_kernel(backend, x.device, x.dtype):
        return None
    return tiles.tile(Product(len(x), weight.shape[0], weight.shape[1], kind))
