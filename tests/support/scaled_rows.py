"""A way of storing for tests: bytes and one scale a row. It is to layers and loaders what the packed ways of the field are.

`name.weight` holds int8 values, `name.weight_scale` the rows' scales. Rows can be cut anywhere, columns cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_runtime.layers.weights.base import ALL
from paceline_runtime.layers.weights.dense import DensePlace


@dataclass(frozen=True)
class ScaledRows:
    """A `Storage`; those of another `origin` are another way of storing."""

    origin: str = "tests"

    def empty(self, rows, columns, dtype, device):
        return ScaledWeight(_bytes((rows, columns), device), torch.empty(rows, dtype=dtype, device=device))

    def empty_stack(self, count, rows, columns, dtype, device):
        return ScaledStack(_bytes((count, rows, columns), device), torch.empty(count, rows, dtype=dtype, device=device))


class ScaledWeight:
    """A `Weight`."""

    def __init__(self, values: torch.Tensor, scales: torch.Tensor) -> None:
        self.values, self.scales = values, scales

    @property
    def shape(self):
        return tuple(self.values.shape)

    @property
    def num_bytes(self):
        return self.values.nbytes + self.scales.nbytes

    def matmul(self, x, bias=None):
        out = (x @ self.values.to(x.dtype).T) * self.scales
        return out if bias is None else out + bias

    def matmul_to_add(self, x):
        return self.matmul(x)

    def matmul_gated(self, x, bias=None):
        both = self.matmul(x, bias)
        return torch.nn.functional.silu(both[:, 0::2]) * both[:, 1::2]

    def rows(self, ids):
        return self.values[ids].to(self.scales.dtype) * self.scales[ids][..., None]

    def take(self, rows=ALL, columns=ALL):
        if columns != ALL:
            raise ValueError("a row with one scale cannot be cut by columns")
        return ScaledWeight(self.values[rows], self.scales[rows])

    def places(self, name):
        return {f"{name}.weight": BytesPlace(self.values), f"{name}.weight_scale": DensePlace(self.scales)}


class ScaledStack:
    """A `WeightStack`."""

    def __init__(self, values: torch.Tensor, scales: torch.Tensor) -> None:
        self.values, self.scales = values, scales

    @property
    def shape(self):
        return tuple(self.values.shape)

    @property
    def num_bytes(self):
        return self.values.nbytes + self.scales.nbytes

    def matmul(self, x, ends):
        groups = torch.searchsorted(ends, torch.arange(len(x), dtype=ends.dtype), right=True).tolist()
        out = x.new_zeros(len(x), self.shape[1])
        for row, group in enumerate(groups):
            if group < self.shape[0]:
                out[row] = self.take(group).matmul(x[row])
        return out

    def take(self, index):
        return ScaledWeight(self.values[index], self.scales[index])

    def places(self, name):
        return {name: BytesPlace(self.values), f"{name}_scale": DensePlace(self.scales)}


class BytesPlace(DensePlace):
    """Bytes are never NaN, and dummies of them are random ones."""

    def fill_dummy(self, generator):
        self.view.random_(-8, 8, generator=generator)


def _bytes(shape, device):
    return torch.empty(shape, dtype=torch.int8, device=device)
