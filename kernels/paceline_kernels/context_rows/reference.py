"""Projection of context rows to the keys and values of every draft layer, 64 rows at a time.

The face offers it as it is: large matmuls stay torch's. A matmul rounds differently at different row counts; here every matmul,
norm and rotation has the same tile shape, so a row's keys and values do not depend on the rows beside it, and a ring that is
rebuilt from pages equals the original bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from paceline_kernels.rotary import apply_rotary, rotary_table

TILE_ROWS = 64


@dataclass(frozen=True)
class ContextProjection:
    """What turns context rows into keys and values.

    project:             rows [N, H] to keys and values of the L layers, [N, L * 2 * Hkv * D]
    key_norms:           [L, D]
    inverse_frequencies: float32 [D / 2]
    """

    project: Callable[[torch.Tensor], torch.Tensor]
    key_norms: torch.Tensor
    inverse_frequencies: torch.Tensor
    eps: float


def context_keys_values(
    context: torch.Tensor, positions: torch.Tensor, projection: ContextProjection
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys (normed and rotated to their positions) and values of N context rows: two [N, L, Hkv, D].

    context: [N, H]; positions: int64 [N]
    """
    num_rows = context.shape[0]
    padding = -num_rows % TILE_ROWS
    context, positions = functional.pad(context, (0, 0, 0, padding)), functional.pad(positions, (0, padding))
    tiles = [
        _tile(rows, places, projection)
        for rows, places in zip(torch.split(context, TILE_ROWS), torch.split(positions, TILE_ROWS), strict=True)
    ]
    keys, values = (torch.cat(parts)[:num_rows] for parts in zip(*tiles, strict=True))
    return keys, values


def _tile(context: torch.Tensor, positions: torch.Tensor, projection: ContextProjection) -> tuple[torch.Tensor, torch.Tensor]:
    num_layers, head_dim = projection.key_norms.shape
    table = rotary_table(positions, projection.inverse_frequencies, 1.0, context.dtype)
    keys, values = projection.project(context).view(TILE_ROWS, num_layers, 2, -1, head_dim).unbind(2)
    keys = functional.rms_norm(keys, (head_dim,), None, projection.eps) * projection.key_norms[:, None]
    return apply_rotary(keys.flatten(1, 2), table).view_as(values), values
