"""Plain values in the engine's dtype. `Parameters` asks for it by the name of a module; it knows no checkpoint format."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.nn import functional

from paceline_kernels.moe import grouped_linear
from paceline_kernels.skinny_linear import (
    NO_TILES,
    TileTable,
    skinny_gated_linear,
    skinny_linear,
    skinny_partial_linear,
)
from paceline_runtime.layers.weights.base import ALL

Convert = Callable[[torch.Tensor], torch.Tensor]

# Torch's CPU products in float32 go to MKL, which on an AMD EPYC is 1.5 (1 row) to 2.2 times (256 rows) as slow as oneDNN
# with the same float32 arithmetic. Torch reaches oneDNN with plain weights only through the operator its compiler emits.
_HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
_SPREAD = 0.02
_ROWS = 4096


@dataclass(frozen=True)
class Dense:
    """A `Storage`: one value a number, stored as `name.weight`; a stack as `name`. `tiles` say how few rows are multiplied."""

    tiles: TileTable = field(default=NO_TILES, compare=False)

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> DenseWeight:
        """Memory for one matrix."""
        return DenseWeight(torch.empty((rows, columns), dtype=dtype, device=device), self.tiles)

    def empty_stack(self, count: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> DenseStack:
        """Memory for `count` matrices."""
        return DenseStack(torch.empty((count, rows, columns), dtype=dtype, device=device))


class DenseWeight:
    """A `Weight` over `data` [rows, columns]."""

    def __init__(self, data: torch.Tensor, tiles: TileTable = NO_TILES) -> None:
        self.data, self.tiles = data, tiles
        # oneDNN repacks a matrix of other strides at every product: a thousand times as slow.
        is_plain = data.dtype == torch.float32 and data.device.type == "cpu" and data.is_contiguous()
        self._uses_onednn = _HAS_ONEDNN and is_plain

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.data.shape
        return rows, columns

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return self.data.nbytes

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x W^T + bias`, by oneDNN or by torch's own choice."""
        if self._uses_onednn:
            return cast(torch.Tensor, torch.ops.mkldnn._linear_pointwise(x, self.data, bias, "none", [], ""))
        rows = skinny_linear(x.reshape(-1, x.shape[-1]), self.data, bias, tiles=self.tiles)
        return rows.view(*x.shape[:-1], rows.shape[-1])

    def matmul_to_add(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T` of few rows in parts, where the product was measured to be fastest so."""
        return self.matmul(x) if self._uses_onednn else skinny_partial_linear(x, self.data, tiles=self.tiles)

    def matmul_gated(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The gated activation, for few rows in the product's own pass."""
        return skinny_gated_linear(x, self.data, bias, tiles=self.tiles)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of these ids."""
        return functional.embedding(ids, self.data)

    def take(self, rows: slice = ALL, columns: slice = ALL) -> DenseWeight:
        """Any part: it is a view."""
        return DenseWeight(self.data[rows, columns], self.tiles)

    def places(self, name: str) -> dict[str, DensePlace]:
        """The matrix itself."""
        return {f"{name}.weight": DensePlace(self.data)}


class DenseStack:
    """A `WeightStack` over `data` [count, rows, columns]."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, int, int]:
        """Count, rows and columns."""
        count, rows, columns = self.data.shape
        return count, rows, columns

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return self.data.nbytes

    def matmul(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """The products, group by group; how many rows a group has is never read back to the host."""
        return grouped_linear(x, self.data, ends)

    def take(self, index: int) -> DenseWeight:
        """One matrix, a view."""
        return DenseWeight(self.data[index])

    def places(self, name: str) -> dict[str, DensePlace]:
        """All matrices in one tensor, whose name has no ending."""
        return {name: DensePlace(self.data)}


@dataclass(frozen=True)
class DensePlace:
    """A `Place`: the memory that a stored tensor of the same shape fills, and a change to make on the way."""

    view: torch.Tensor
    convert: Convert | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the memory and of what is stored."""
        return tuple(self.view.shape)

    def fill(self, stored: torch.Tensor) -> None:
        """Copy the values, rounded to the memory's dtype."""
        self.view.copy_(self.convert(stored) if self.convert else stored)

    def fill_dummy(self, generator: torch.Generator) -> None:
        """Ones in vectors, small normal noise in everything larger."""
        if self.view.ndim == 1:
            self.view.fill_(1.0)
        else:
            self.view.normal_(0.0, _SPREAD, generator=generator)

    def is_finite(self) -> bool:
        """Whether the sum is finite, which takes no memory beside the weights; `isfinite` of an embedding takes gigabytes."""
        wide = self.view.dtype if self.view.dtype == torch.float64 else torch.float32
        return math.isfinite(self.view.sum(dtype=wide).item())

    def holds(self, stored: torch.Tensor) -> bool:
        """Whether the values are equal, some rows at a time: a second copy of an embedding takes gigabytes."""
        parts = zip(torch.split(self.view, _ROWS), torch.split(stored, _ROWS), strict=False)
        return self.shape == tuple(stored.shape) and all(torch.equal(ours, theirs.to(ours.dtype)) for ours, theirs in parts)
