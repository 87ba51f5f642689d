"""What all layers of one forward share of its attention. The face builds it, once per forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Gather:
    """Where the reference finds the keys of B requests, and which of their W rows see them.

    cells: int64 [B * L], cell (page * page_size + offset) of each of the L = P * page_size key positions of each request
    bias:  [B, 1, W, L] of the query's dtype, 0 where row j sees the key and -inf elsewhere
    """

    cells: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class VerifyContext:
    """The context of B requests: page_table int64 [B, P], lengths int64 [B]; positions before `first` are not seen.

    `gather` is absent where the kernel runs, which finds keys by itself.
    """

    page_table: torch.Tensor
    lengths: torch.Tensor
    first: int
    gather: Gather | None = None


@dataclass(frozen=True)
class PrefillContext:
    """The context of one request's chunk from position `start` on: pages int64 [P].

    `mask` is None at start 0, where torch's own causal flag does; `is_fused` says whose it is.
    """

    pages: torch.Tensor
    start: int
    mask: torch.Tensor | None
    is_fused: bool = False
