"""The DFlash 2 draft: one forward over a block of [anchor, mask x k], then a path through the candidates of its slots.

Called by the proposer and the self-check. It refuses to know about pages, requests and rings beyond their tensors. The
method is the DFlash 2 draft as the `dflash` package 0.1.0 publishes it; tests hold this forward against that package.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from paceline_kernels.context_rows import ContextProjection
from paceline_kernels.rms_norm import rms_norm
from paceline_kernels.rotary import RotaryTable, apply_rotary, rotary_table
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.config import DraftConfig
from paceline_runtime.speculative.dflash.ops import DraftOps
from paceline_runtime.speculative.dflash.weights import ConvWeights, DraftWeights, LayerWeights


@dataclass(frozen=True)
class Candidates:
    """What the target's head makes of a block: ids and logits [B, k, C], selector input [B, k, rank]."""

    ids: torch.Tensor
    unary: torch.Tensor
    hidden: torch.Tensor


class Draft:
    """A loaded draft. Embedding and head are the target's; rope, norms and dtype are its own."""

    def __init__(self, config: DraftConfig, weights: DraftWeights, ops: DraftOps) -> None:
        self.config, self.weights, self.ops = config, weights, ops
        device = weights.norm.device
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
        # No table of positions: whatever context the target allows, the draft's own limit cannot be overrun.
        self.inverse_frequencies = 1.0 / config.rope_theta**exponents

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, context rows and rings."""
        return self.weights.norm.dtype

    def context_rows(self, taps: torch.Tensor) -> torch.Tensor:
        """Context rows [N, H] from the tapped layers' projected sum [N, H]."""
        return rms_norm(taps.to(self.dtype), self.weights.hidden_norm, self.config.rms_norm_eps)

    def context_projection(self) -> ContextProjection:
        """What turns context rows into keys and values of all layers."""
        key_norms = torch.stack([layer.k_norm for layer in self.weights.layers])
        return ContextProjection(self.weights.key_value, key_norms, self.inverse_frequencies, self.config.rms_norm_eps)

    def block_embeddings(self, target: TargetModel, anchors: torch.Tensor, num_steps: int) -> torch.Tensor:
        """Embeddings [B, 1 + k, H] of the anchors int64 [B], each followed by k masks."""
        ids = functional.pad(anchors[:, None], (0, num_steps), value=self.config.mask_token_id)
        return target.embed(ids).to(self.dtype)

    def forward(
        self,
        embeddings: torch.Tensor,
        lengths: torch.Tensor,
        rows: torch.Tensor,
        ring_keys: torch.Tensor,
        ring_values: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [B, W, H] of blocks, final norm applied.

        embeddings: [B, W, H]; lengths: int64 [B], position of each anchor; rows: int64 [B], ring of each block
        ring_keys, ring_values: [L, num_rows, R, Hkv, D], see `paceline_kernels.window_attention`
        """
        hidden, width = embeddings, embeddings.shape[1]
        positions = (lengths[:, None] + torch.arange(width, device=lengths.device)).flatten()
        table = rotary_table(positions, self.inverse_frequencies, 1.0, hidden.dtype)
        for index, layer in enumerate(self.weights.layers):
            normed = rms_norm(hidden, layer.input_norm, self.config.rms_norm_eps)
            inner, delta = self._conv_in(layer.attention_conv, normed)
            q, k, v = self._queries_keys_values(layer, inner, table)
            attended = self.ops.window_attention(
                q, ring_keys[index], ring_values[index], rows, lengths, k, v, self.config.sliding_window
            )
            hidden = hidden + self._conv_out(layer.attention_conv, functional.linear(attended.flatten(-2), layer.o_proj), delta)
            normed = rms_norm(hidden, layer.post_attention_norm, self.config.rms_norm_eps)
            inner, delta = self._conv_in(layer.mlp_conv, normed)
            hidden = hidden + self._conv_out(layer.mlp_conv, _swiglu(layer, inner), delta)
        return rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)

    def candidates(self, target: TargetModel, hidden: torch.Tensor) -> Candidates:
        """The likeliest ids of slots [B, k, H] under the target's own head."""
        logits = target.logits(hidden.flatten(0, 1).to(target.dtype))
        unary, ids = logits.topk(self.config.selector_top_k, -1)
        shape = (*hidden.shape[:2], -1)
        return Candidates(ids.view(shape), unary.view(shape), functional.linear(hidden, self.weights.selector_hidden))

    def select(
        self,
        candidates: Candidates,
        anchors: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        lengths: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One path through the candidates: tokens int64 [B, k] and q [B, k, C]."""
        num_steps = candidates.ids.shape[1]
        positions = lengths[:, None] + torch.arange(1, num_steps + 1, device=lengths.device)
        return self.ops.select_path(
            candidates.unary,
            candidates.ids,
            candidates.hidden,
            self.weights.predecessor,
            self.weights.successor,
            anchors,
            temperature,
            seeds,
            positions,
        )

    def _conv_in(self, conv: ConvWeights, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The convolved input of a sublayer, and the dynamic kernels that its output is convolved with."""
        shape = (*normed.shape[:2], 2, self.config.conv_kernel_size, self.config.num_conv_groups)
        delta = functional.linear(normed, conv.projection).view(shape)
        return self.ops.grouped_conv(normed, delta[:, :, 0], conv.base[0]), delta[:, :, 1]

    def _conv_out(self, conv: ConvWeights, output: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return self.ops.grouped_conv(output, delta, conv.base[1])

    def _queries_keys_values(
        self, layer: LayerWeights, x: torch.Tensor, table: RotaryTable
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [B, W, Hq, D], keys and values [B, W, Hkv, D] of a block's rows, normed and rotated."""
        eps, head_dim, block = self.config.rms_norm_eps, self.config.head_dim, x.shape[:2]
        rows = x.flatten(0, 1)
        q = functional.linear(rows, layer.q_proj).view(len(rows), -1, head_dim)
        k, v = functional.linear(rows, layer.key_value).view(len(rows), 2, -1, head_dim).unbind(1)
        q = apply_rotary(rms_norm(q, layer.q_norm, eps), table)
        k = apply_rotary(rms_norm(k, layer.k_norm, eps), table)
        return q.view(*block, -1, head_dim), k.view(*block, -1, head_dim), v.view(*block, -1, head_dim)


def _swiglu(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    gate, up = functional.linear(x, layer.gate_up).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, layer.down)
