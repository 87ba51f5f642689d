"""Sampling parameters of a batch's rows as tensors, and what the host knows of all of them.

Made by the executor, read by everything in this folder. What the host knows (is any row sampled, is there a bound on top-k)
picks the path, never what a row gets: a row's tokens are the same in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of B rows on the device, and what the host knows of them.

    keys int64 [B]; temperature, top_p, min_p float64 [B]; top_k int64 [B] (0: no limit); greedy bool [B];
    presence, frequency, repetition float64 [B] or None when no row has penalties; prompt_lengths int64 [B];
    bias: (row [M], token [M], value [M]) in the order of rows, or None; bias_ends: how many entries there are up to each row.
    `support` bounds the ids that p of any sampled row is supported on, 0: none.
    """

    keys: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    greedy: torch.Tensor
    prompt_lengths: torch.Tensor
    presence: torch.Tensor | None
    frequency: torch.Tensor | None
    repetition: torch.Tensor | None
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    bias_ends: tuple[int, ...]
    any_sampled: bool
    support: int
    num_logprobs: int | None

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits are changed before a token is chosen."""
        return self.presence is not None or self.bias is not None

    def part(self, start: int, end: int) -> RowParams:
        """The rows from `start` to before `end`; what the host knows stays what it knows of all."""
        tensors = {f.name: getattr(self, f.name)[start:end] for f in fields(self) if torch.is_tensor(getattr(self, f.name))}
        first, last = self.bias_ends[start - 1] if start else 0, self.bias_ends[end - 1]
        bias = None
        if self.bias is not None:
            rows, tokens, values = (entries[first:last] for entries in self.bias)
            bias = rows - start, tokens, values
        return replace(self, **tensors, bias=bias, bias_ends=tuple(e - first for e in self.bias_ends[start:end]))
