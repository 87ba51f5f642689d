"""Sampling parameters of a batch's rows as tensors, and which work they take.

The device's programs gather them, and everything in this folder reads them. The `variant`, which is what the host knows of a
batch, picks the path, never what a row gets: a row's tokens are the same in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

from paceline_runtime.step import Variant


@dataclass(frozen=True)
class RowParams:
    """Parameters of B rows.

    keys int64 [B]; temperature, top_p, min_p float64 [B]; top_k int64 [B] (0: no limit); greedy bool [B];
    presence, frequency, repetition float64 [B]; prompt_lengths int64 [B];
    bias_ids int64, bias_values float64 [B, M]: what is added to M logits of each row, of value 0 where a row has fewer.
    """

    variant: Variant
    keys: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    greedy: torch.Tensor
    prompt_lengths: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    repetition: torch.Tensor
    bias_ids: torch.Tensor
    bias_values: torch.Tensor

    def part(self, start: int, end: int) -> RowParams:
        """The rows from `start` to before `end`; the variant stays the one of the whole batch."""
        tensors = {f.name: getattr(self, f.name)[start:end] for f in fields(self) if f.name != "variant"}
        return replace(self, **tensors)

    def repeated(self, count: int) -> RowParams:
        """One row's parameters as those of `count` rows, over the same memory."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "variant"}
        return replace(self, **{name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in tensors.items()})
