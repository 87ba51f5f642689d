"""One layer of a DFlash 2 draft: attention over the block and the ring, and a gated MLP, each between two convolutions.

The draft makes it from the layers that targets are made of; only the convolutions are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_compat.facts.records import WholeDraft
from paceline_kernels.backend import Backend
from paceline_kernels.grouped_conv import grouped_conv
from paceline_kernels.place_heads import HeadLayout
from paceline_kernels.rotary import RotaryTable
from paceline_kernels.window_attention import Rings, window_attention
from paceline_runtime.layers.attention import Attention
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import gated_mlp
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.parameters import Parameters


@dataclass(frozen=True)
class Block:
    """What the layers of one forward share, for B blocks.

    lengths: int64 [B], positions of their anchors; seats: int64 [B], whose rings they see
    ring_keys, ring_values: [L, num_seats, R, Hkv, D]
    """

    rotary: RotaryTable
    lengths: torch.Tensor
    seats: torch.Tensor
    ring_keys: torch.Tensor
    ring_values: torch.Tensor
    window: int
    backend: Backend


Stream = tuple[torch.Tensor, torch.Tensor | None]
"""The residual stream [N, H], rows of blocks one after the other, and what is still to be added to it."""


class ConvolvedSublayer:
    """`x + conv(f(conv(norm(x))))`, with the addition left to the norm that follows.

    Both convolutions take their dynamic kernels from the normed input.

    base: [2 sides, T, H]; projection: both sides' kernels, 2 * T * G outputs
    """

    def __init__(self, config: WholeDraft, norm: str, conv: str, parameters: Parameters) -> None:
        hidden, taps, groups = config.hidden_size, config.conv_kernel_size, config.num_conv_groups
        self._kernels_shape = (2, taps, groups)
        self.norm = parameters.norm(norm, hidden, config.rms_norm_eps)
        self.base = parameters.tensor(f"{conv}.base_kernel", 2, taps, hidden)
        self.projection = parameters.linear({f"{conv}.kernel_projection": 2 * taps * groups}, hidden, split=None)

    def __call__(
        self, stream: Stream, f: Callable[[torch.Tensor], torch.Tensor], block: Block
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`f` makes rows [N, H] of rows [N, H]; what it makes is still to be added."""
        hidden, normed = self.norm.add(*stream, backend=block.backend)
        blocks = normed.view(len(block.lengths), -1, normed.shape[-1])
        delta = self.projection(normed).view(*blocks.shape[:2], *self._kernels_shape)
        out = f(grouped_conv(blocks, delta[:, :, 0], self.base[0], backend=block.backend).flatten(0, 1))
        added = grouped_conv(out.view_as(blocks), delta[:, :, 1], self.base[1], backend=block.backend)
        return hidden, added.flatten(0, 1)


class DraftLayer:
    """`key_value` gives this layer's keys and values; its memory is that of all layers' together."""

    def __init__(self, config: WholeDraft, index: int, key_value: Linear, parameters: Parameters) -> None:
        name = f"layers.{index}"
        self._around_attention = ConvolvedSublayer(config, f"{name}.input_layernorm", f"{name}.attention_conv", parameters)
        self.k_norm = parameters.norm(f"{name}.self_attn.k_norm", config.head_dim, config.rms_norm_eps)
        self.attention = _attention(config, index, key_value, self.k_norm, parameters)
        self._around_mlp = ConvolvedSublayer(config, f"{name}.post_attention_layernorm", f"{name}.mlp_conv", parameters)
        self._mlp = gated_mlp(parameters, f"{name}.mlp", config.hidden_size, config.intermediate_size)

    def __call__(self, stream: Stream, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of blocks and what is still to be added to them, in and out."""
        return self._around_mlp(self._around_attention(stream, lambda x: self._attend(x, block), block), self._mlp, block)

    def _attend(self, x: torch.Tensor, block: Block) -> torch.Tensor:
        heads = self.attention.project(x, block.rotary, backend=block.backend)
        q, k, v = (part.view(len(block.lengths), -1, *part.shape[1:]) for part in heads)
        layer = self.attention.layer
        rings = Rings(block.ring_keys[layer], block.ring_values[layer], block.seats, block.lengths)
        attended = window_attention(q=q, rings=rings, block_keys=k, block_values=v, window=block.window, backend=block.backend)
        return self.attention.out(attended.flatten(-2).flatten(0, 1))


def _attention(config: WholeDraft, index: int, key_value: Linear, k_norm: RmsNorm, parameters: Parameters) -> Attention:
    name, hidden, head_dim = f"layers.{index}.self_attn", config.hidden_size, config.head_dim
    queries = parameters.linear({f"{name}.q_proj": config.num_heads * head_dim}, hidden, split="rows")
    return Attention(
        Linear(*queries.weights, *key_value.weights, split="rows"),
        parameters.linear({f"{name}.o_proj": hidden}, config.num_heads * head_dim, split="columns"),
        HeadLayout(config.num_heads, config.num_kv_heads, head_dim),
        layer=index,
        q_norm=parameters.norm(f"{name}.q_norm", head_dim, config.rms_norm_eps),
        k_norm=k_norm,
    )
