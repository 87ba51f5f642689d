"""The tensors of a model under construction, and which checkpoint tensor fills which part of them.

Families declare what they need and get layers over memory that is not filled yet; the loader then copies each stored
tensor straight into its place, so loading takes no more than one tensor beside the weights. It knows names and shapes,
no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.weights import DENSE, Shard, Weight

Convert = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Where one stored tensor goes: a view of the memory it fills, and a change to make on the way (shape kept)."""

    view: torch.Tensor
    convert: Convert | None = None

    def fill(self, stored: torch.Tensor) -> None:
        self.view.copy_(self.convert(stored) if self.convert else stored)


class Parameters:
    """Allocates on `device` in the engine's dtype; `places` maps stored names to memory.

    `copies` maps names that a checkpoint may store a second time to the memory that they must equal; `ignored` holds name
    prefixes and `ignored_suffixes` endings of stored tensors that the family has no use for; every
    other surplus tensor is an error.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, shard: Shard | None = None) -> None:
        self.dtype, self.device, self.shard = dtype, device, shard or Shard()
        self.places: dict[str, Place] = {}
        self.copies: dict[str, torch.Tensor] = {}
        self.ignored: list[str] = []
        self.ignored_suffixes: list[str] = []
        self._otherwise: list[tuple[tuple[str, ...], dict[str, Place]]] = []
        self._allocated_bytes = 0

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None, convert: Convert | None = None) -> torch.Tensor:
        """Memory of this shape, filled by the stored tensor `name`; `convert` sees it as stored."""
        data = self._allocate(shape, dtype)
        self.places[name] = Place(data, convert)
        return data

    def stack(self, parts: Mapping[str, int], *columns: int) -> torch.Tensor:
        """One tensor [sum of rows, *columns] whose consecutive rows are filled by the named stored tensors."""
        data = self._allocate((sum(parts.values()), *columns), None)
        for (name, _), view in zip(parts.items(), torch.split(data, list(parts.values())), strict=True):
            self.places[name] = Place(view)
        return data

    def linear(self, parts: Mapping[str, int], columns: int, *, bias: bool = False) -> Linear:
        """A linear layer over the stacked modules `name: rows`, each stored as `name.weight` and, perhaps, `name.bias`."""
        weight = self.stack({f"{name}.weight": rows for name, rows in parts.items()}, columns)
        offsets = self.stack({f"{name}.bias": rows for name, rows in parts.items()}) if bias else None
        return Linear(Weight(DENSE, weight), offsets)

    def norm(self, name: str, size: int, eps: float) -> RmsNorm:
        """An RMS norm stored as `name.weight`."""
        return RmsNorm(self.tensor(f"{name}.weight", size), eps)

    def store_otherwise(self, names: tuple[str, ...], places: Mapping[str, Place]) -> None:
        """Let a checkpoint that has none of the stored tensors `names` fill their memory through these places instead."""
        self._otherwise.append((names, dict(places)))

    def settle(self, stored: Collection[str]) -> None:
        """Choose, by the names that a checkpoint has, among the ways in which it may store the same weights."""
        for names, places in self._otherwise:
            if not any(name in stored for name in names) and any(name in stored for name in places):
                for name in names:
                    del self.places[name]
                self.places |= places

    def is_ignored(self, name: str) -> bool:
        """Whether a stored tensor without a place is to be passed over."""
        return name in self.copies or name.startswith(tuple(self.ignored)) or name.endswith(tuple(self.ignored_suffixes))

    def memory_bytes(self) -> int:
        """Bytes allocated so far."""
        return self._allocated_bytes

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        data = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        self._allocated_bytes += data.nbytes
        return data
