"""What a weight can do, however it is stored. Layers multiply by it, `Parameters` allocates it, loaders fill its places.

A way of storing is one file beside this one: a `Storage`, which allocates, and the weights that it makes. It refuses to know
file formats; the places of a weight say that a stored tensor is one of blocks, or has scales beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

ALL = slice(None)


class Place(Protocol):
    """Where one stored tensor goes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """As the checkpoint must store it."""
        ...

    def fill(self, stored: torch.Tensor) -> None:
        """Put a loaded tensor here."""
        ...

    def fill_dummy(self, generator: torch.Generator) -> None:
        """Put numbers here that give finite outputs, for measuring speed only."""
        ...

    def is_finite(self) -> bool:
        """Whether what was put here holds no NaN or infinity."""
        ...

    def holds(self, stored: torch.Tensor) -> bool:
        """Whether a loaded tensor is what was put here."""
        ...


class Weight(Protocol):
    """A matrix [rows, columns] that multiplies itself."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, whatever is stored for them."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of this part, with all that belongs to it."""
        ...

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`x W^T + bias` for x [..., columns]: [..., rows]."""
        ...

    def matmul_to_add(self, x: torch.Tensor) -> torch.Tensor:
        """`x W^T` of rows [N, columns] for somebody who adds it to [N, rows]: that, or parts of it [P, N, rows] in float32."""
        ...

    def matmul_gated(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """`silu(gate) * up` of x [N, columns] where row 2i of this matrix is gate i and row 2i + 1 is up i: [N, rows / 2]."""
        ...

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows `ids` int64 [...], as an embedding looks them up: [..., columns]."""
        ...

    def take(self, rows: slice = ALL, columns: slice = ALL) -> Weight:
        """A part of this matrix over the same memory. ValueError where the way of storing cannot be cut there."""
        ...

    def places(self, name: str) -> Mapping[str, Place]:
        """The stored tensors that fill this part, by their names in a checkpoint whose module is called `name`."""
        ...


class WeightStack(Protocol):
    """Matrices of one shape [count, rows, columns] that groups of rows are multiplied by, each group by its own."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Count, rows and columns."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of all of them."""
        ...

    def matmul(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """`x[i] W_e^T` for rows ends[e - 1] <= i < ends[e] of x [M, columns]: [M, rows]; 0 from ends[-1] on. ends: int32."""
        ...

    def take(self, index: int) -> Weight:
        """One of the matrices, over the same memory."""
        ...

    def places(self, name: str) -> Mapping[str, Place]:
        """The stored tensors that fill all of it at once, in a checkpoint that calls the stack `name`."""
        ...


class Storage(Protocol):
    """A way of storing. Parts of equal storages may share one weight; compare with `==`."""

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Weight:
        """A weight whose memory is not filled yet; `dtype` is what it computes in."""
        ...

    def empty_stack(self, count: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> WeightStack:
        """A stack whose memory is not filled yet."""
        ...
