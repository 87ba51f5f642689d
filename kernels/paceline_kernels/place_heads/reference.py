"""From an attention's projected rows to queries and pages, in plain torch: norms on heads, rotary positions, K/V in place.

The face calls it. It refuses to know which page belongs to whom: a row's cell in the pages is a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from paceline_kernels.paged_attention.reference import write_pages
from paceline_kernels.rotary.reference import RotaryTable, apply_rotary


@dataclass(frozen=True)
class HeadLayout:
    """How a projected row is cut: heads of q, then of k, then of v. With `gated`, each query is followed by its gate."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gated: bool = False

    @property
    def q_width(self) -> int:
        """Columns of all queries, and their gates."""
        return self.num_heads * self.head_dim * (2 if self.gated else 1)


@dataclass(frozen=True)
class HeadNorms:
    """Weights [D] of the RMS norms on heads of q and k; zero-centred ones come with their 1 added, in float32."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float


@dataclass(frozen=True)
class KvCells:
    """Where K/V of N rows go: pages [P, page, Hkv, D], and cells int64 [N], which are page * page size + offset."""

    keys: torch.Tensor
    values: torch.Tensor
    cells: torch.Tensor


def place_heads(
    projected: torch.Tensor,
    layout: HeadLayout,
    norms: HeadNorms | None,
    rotary: RotaryTable,
    kv: KvCells,
) -> torch.Tensor:
    """Write K/V of N projected rows to the pages, and give their queries [N, Hq, D], normed and rotated."""
    q, k, v = split_heads(projected, layout)
    if norms is not None:
        q, k = _norm(q, norms.q, norms.eps), _norm(k, norms.k, norms.eps)
    if norms is None and not layout.gated:  # q and k are neighbours in a row: one rotation serves both
        both = projected.view(len(projected), -1, layout.head_dim)[:, : layout.num_heads + layout.num_kv_heads]
        q, k = apply_rotary(both, rotary).tensor_split((layout.num_heads,), dim=1)
    else:
        q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
    write_pages(kv.keys, kv.values, kv.cells, k, v)
    return q


def split_heads(projected: torch.Tensor, layout: HeadLayout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [N, Hq, D], k and v [N, Hkv, D] of projected rows, as views."""
    heads = projected.view(len(projected), -1, layout.head_dim)
    step = 2 if layout.gated else 1
    num_doubled = step * layout.num_heads
    k, v = torch.split(heads[:, num_doubled:], layout.num_kv_heads, dim=1)
    return heads[:, :num_doubled:step], k, v


def gates(projected: torch.Tensor, layout: HeadLayout) -> torch.Tensor:
    """The gates [N, Hq, D] of a gated layout, as a view."""
    return projected.view(len(projected), -1, layout.head_dim)[:, 1 : 2 * layout.num_heads : 2]


def _norm(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = torch.promote_types(heads.dtype, weight.dtype)
    return functional.rms_norm(heads.to(wide), (heads.shape[-1],), weight, eps).to(heads.dtype)
