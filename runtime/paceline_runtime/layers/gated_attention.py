"""The attention of the hybrid families: a sigmoid gate per value of the output, norms on heads, partial rotary positions.

The recipe of the hybrids and the MTP head make it. It knows pages by number, and no request.
"""

from __future__ import annotations

import torch

from paceline_kernels.place_heads import HeadLayout, HeadNorms, gates, place_heads, split_heads
from paceline_kernels.rotary import RotaryTable, apply_rotary
from paceline_runtime.layers.attention import AttentionContext, attend
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.norm import RmsNorm


class GatedAttention:
    """`layer` is the index into the K/V pages.

    `qkv` holds the rows of q, k and v stacked in this order; q's are doubled, each head's query before its gate.
    """

    def __init__(self, qkv: Linear, out: Linear, layout: HeadLayout, q_norm: RmsNorm, k_norm: RmsNorm, *, layer: int) -> None:
        self.qkv, self.out, self.layer = qkv, out, layer
        self.q_norm, self.k_norm = q_norm, k_norm
        self._layout, self.scale = layout, layout.head_dim**-0.5
        self._norms = HeadNorms(q_norm.weight, k_norm.weight, q_norm.eps)

    def __call__(self, x: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        projected = self.qkv(x)
        q = place_heads(projected, self._layout, self._norms, context.rotary, context.kv_cells(self.layer))
        attended = attend(context, self.layer, q, self.scale, gates(projected, self._layout))
        return self.out.to_be_added(attended.flatten(1))

    def project(self, x: torch.Tensor, rotary: RotaryTable) -> tuple[torch.Tensor, ...]:
        """q, k (normed and rotated), v and the gate of rows x [N, H]: [N, heads, D] each."""
        projected = self.qkv(x)
        q, k, v = split_heads(projected, self._layout)
        q, k = (apply_rotary(part, rotary) for part in (self.q_norm(q), self.k_norm(k)))
        return q, k, v, gates(projected, self._layout)
