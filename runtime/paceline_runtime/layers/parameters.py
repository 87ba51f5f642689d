"""The weights of a model under construction, and which checkpoint tensor fills which part of them.

Families declare what they need and get layers over memory that is not filled yet; the loader then copies each stored
tensor straight into its place, so loading takes no more than one tensor beside the weights. It knows names and shapes,
no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

import torch

from paceline_kernels.skinny_linear import TileTable
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.tiles import shipped_for
from paceline_runtime.layers.weights.base import Place, Storage, Weight, WeightStack
from paceline_runtime.layers.weights.dense import Convert, Dense, DensePlace
from paceline_runtime.layers.weights.shard import Shard, Split

StorageOf = Callable[[str], Storage]
"""How a checkpoint stores the matrix of the module with this name."""


def all_dense(tiles: TileTable) -> StorageOf:
    """Plain values for every module, their products cut as in this table."""
    return lambda name: Dense(tiles)


class Parameters:
    """Allocates on `device`, for an engine that computes in `dtype`; `places` maps stored names to memory.

    Without `storage_of` all are plain values, whose products are cut as shipped for this device.
    """

    def __init__(
        self, dtype: torch.dtype, device: torch.device, *, shard: Shard | None = None, storage_of: StorageOf | None = None
    ) -> None:
        self.dtype, self.device, self.shard = dtype, device, shard or Shard()
        self.storage_of = storage_of or all_dense(shipped_for(device))
        self.places: dict[str, Place] = {}
        self._otherwise: list[tuple[Mapping[str, Place], Callable[[], dict[str, Place]]]] = []
        self._allocated_bytes = 0

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None, convert: Convert | None = None) -> torch.Tensor:
        """Plain memory of this shape, filled by the stored tensor `name`; `convert` sees it as stored."""
        data = self._allocate(shape, dtype)
        self.places[name] = DensePlace(data, convert)
        return data

    def norm(self, name: str, size: int, eps: float, *, zero_centred: bool = False) -> RmsNorm:
        """An RMS norm stored as `name.weight`.

        A checkpoint stores of a zero-centred norm what the weight has beyond 1; 1 + w rounded to bf16 would lose w's digits.
        """
        if not zero_centred:
            return RmsNorm(self.tensor(f"{name}.weight", size), eps)
        wide = torch.promote_types(self.dtype, torch.float32)
        return RmsNorm(self.tensor(f"{name}.weight", size, dtype=wide, convert=lambda stored: stored.to(wide) + 1), eps)

    def weight(self, name: str, rows: int, columns: int) -> Weight:
        """The matrix of the module `name`."""
        (weight,) = self._weights({name: rows}, columns)
        return weight

    def linear(self, parts: Mapping[str, int], columns: int, *, split: Split | None, bias: bool = False) -> Linear:
        """A linear layer over the stacked modules `name: rows`, each perhaps with a vector `name.bias`.

        Neighbours that are stored alike become one weight; `split` says what shards divide.
        """
        offsets = self._biases(parts) if bias else None
        return Linear(*self._weights(parts, columns), bias=offsets, split=split)

    def interleaves(self, first: str, second: str) -> bool:
        """Whether the rows of two modules are to lie in turn: where a GPU multiplies plain 16-bit values."""
        is_fast = self.device.type == "cuda" and self.dtype in (torch.float16, torch.bfloat16)
        return is_fast and self.storage_of(first) == self.storage_of(second) == Dense()

    def interleaved(
        self, first: str, second: str, rows: int, columns: int, *, split: Split | None, bias: bool = False
    ) -> Linear:
        """A linear layer of 2 * rows outputs: one module gives the even ones, another that is stored alike the odd ones."""
        weight = self.storage_of(first).empty(2 * rows, columns, self.dtype, self.device)
        self._allocated_bytes += weight.num_bytes
        offsets = self._allocate((2 * rows,), None) if bias else None
        for start, name in enumerate((first, second)):
            every = slice(start, None, 2)
            self.places |= weight.take(every).places(name)
            if offsets is not None:
                self.places[f"{name}.bias"] = DensePlace(offsets[every])
        return Linear(weight, bias=offsets, split=split)

    def stack(self, name: str, singles: Sequence[Mapping[str, int]], columns: int) -> WeightStack:
        """One matrix for each of `singles`, whose consecutive rows are its modules' (`name: rows`).

        A checkpoint stores them all as `name`, or each module on its own. ValueError when they are not stored alike.
        """
        storages = {self.storage_of(module) for modules in singles for module in modules}
        if len(storages) > 1:
            kinds = ", ".join(sorted(map(repr, storages)))
            raise ValueError(f"{name}: the matrices of a stack must be stored alike, and these are {kinds}")
        stack = storages.pop().empty_stack(len(singles), sum(singles[0].values()), columns, self.dtype, self.device)
        self._allocated_bytes += stack.num_bytes
        self.places |= (whole := stack.places(name))
        self._otherwise.append((whole, lambda: _places_of_singles(stack, singles)))
        return stack

    def settle(self, stored: Collection[str]) -> None:
        """Choose among the ways in which a checkpoint may store the same weights, by the names that it has."""
        for usual, others in self._otherwise:
            if any(name in stored for name in usual):
                continue
            places = others()
            if any(name in stored for name in places):
                for name in usual:
                    self.places.pop(name, None)
                self.places |= places

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What the model asks of a checkpoint: stored names and shapes."""
        return {name: place.shape for name, place in self.places.items()}

    def memory_bytes(self) -> int:
        """Bytes allocated so far."""
        return self._allocated_bytes

    def _weights(self, parts: Mapping[str, int], columns: int) -> list[Weight]:
        """One weight for each run of modules that are stored alike."""
        weights: list[Weight] = []
        for storage, names in groupby(parts, self.storage_of):
            run = {name: parts[name] for name in names}
            weights.append(storage.empty(sum(run.values()), columns, self.dtype, self.device))
            self._allocated_bytes += weights[-1].num_bytes
            self.places |= _places_of_parts(weights[-1], run)
        return weights

    def _biases(self, parts: Mapping[str, int]) -> torch.Tensor:
        data = self._allocate((sum(parts.values()),), None)
        for name, view in zip(parts, torch.split(data, list(parts.values())), strict=True):
            self.places[f"{name}.bias"] = DensePlace(view)
        return data

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> torch.Tensor:
        data = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        self._allocated_bytes += data.nbytes
        return data


def _places_of_parts(weight: Weight, parts: Mapping[str, int]) -> dict[str, Place]:
    """Consecutive rows of a weight, each filled by its own module."""
    places: dict[str, Place] = {}
    start = 0
    for name, rows in parts.items():
        places |= weight.take(slice(start, start + rows)).places(name)
        start += rows
    return places


def _places_of_singles(stack: WeightStack, singles: Sequence[Mapping[str, int]]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for index, parts in enumerate(singles):
        places |= _places_of_parts(stack.take(index), parts)
    return places
