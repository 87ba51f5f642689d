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
from paceline_kernels.rotary import RotaryTable
from paceline_kernels.window_attention import window_attention
from paceline_runtime.layers.attention import Attention
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import gated_mlp
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.parameters import Parameters


@dataclass(frozen=True)
class Block:
    """What the layers of one forward share, for B blocks: seats int64 [B] of their rings, lengths int64 [B], their anchors'
    positions; ring_keys, ring_values: [L, num_seats, R, Hkv, D]."""

    rotary: RotaryTable
    lengths: torch.Tensor
    seats: torch.Tensor
    ring_keys: torch.Tensor
    ring_values: torch.Tensor
    window: int
    backend: Backend


class ConvolvedSublayer:
    """`x + conv(f(conv(norm(x))))`. Both convolutions take their dynamic kernels from the normed input.

    base: [2 sides, T, H]; projection: both sides' kernels, 2 * T * G outputs
    """

    def __init__(self, config: WholeDraft, norm: str, conv: str, parameters: Parameters) -> None:
        hidden, taps, groups = config.hidden_size, config.conv_kernel_size, config.num_conv_groups
        self._kernels_shape = (2, taps, groups)
        self.norm = parameters.norm(norm, hidden, config.rms_norm_eps)
        self.base = parameters.tensor(f"{conv}.base_kernel", 2, taps, hidden)
        self.projection = parameters.linear({f"{conv}.kernel_projection": 2 * taps * groups}, hidden, split=None)

    def __call__(self, hidden: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor], backend: Backend) -> torch.Tensor:
        """Hidden [B, W, H] with what `f` makes of [B, W, H] added."""
        normed = self.norm(hidden)
        delta = self.projection(normed).view(*hidden.shape[:2], *self._kernels_shape)
        out = f(grouped_conv(normed, delta[:, :, 0], self.base[0], backend=backend))
        return hidden + grouped_conv(out, delta[:, :, 1], self.base[1], backend=backend)


class DraftLayer:
    """`key_value` gives this layer's keys and values; its memory is that of all layers' together."""

    def __init__(self, config: WholeDraft, index: int, key_value: Linear, parameters: Parameters) -> None:
        name = f"layers.{index}"
        self._around_attention = ConvolvedSublayer(config, f"{name}.input_layernorm", f"{name}.attention_conv", parameters)
        self.k_norm = parameters.norm(f"{name}.self_attn.k_norm", config.head_dim, config.rms_norm_eps)
        self.attention = _attention(config, index, key_value, self.k_norm, parameters)
        self._around_mlp = ConvolvedSublayer(config, f"{name}.post_attention_layernorm", f"{name}.mlp_conv", parameters)
        self._mlp = gated_mlp(parameters, f"{name}.mlp", config.hidden_size, config.intermediate_size)

    def __call__(self, hidden: torch.Tensor, block: Block) -> torch.Tensor:
        """Hidden rows of blocks [B, W, H] in, hidden rows out."""
        hidden = self._around_attention(hidden, lambda x: self._attend(x, block), block.backend)
        return self._around_mlp(hidden, lambda x: self._mlp(x.flatten(0, 1)).view_as(x), block.backend)

    def _attend(self, x: torch.Tensor, block: Block) -> torch.Tensor:
        heads = self.attention.project(x.flatten(0, 1), block.rotary)
        q, k, v = (part.view(*x.shape[:2], *part.shape[1:]) for part in heads)
        attended = window_attention(
            q=q,
            ring_keys=block.ring_keys[self.attention.layer],
            ring_values=block.ring_values[self.attention.layer],
            seats=block.seats,
            lengths=block.lengths,
            block_keys=k,
            block_values=v,
            window=block.window,
            backend=block.backend,
        )
        return self.attention.out(attended.flatten(-2))


def _attention(config: WholeDraft, index: int, key_value: Linear, k_norm: RmsNorm, parameters: Parameters) -> Attention:
    name, hidden, head_dim = f"layers.{index}.self_attn", config.hidden_size, config.head_dim
    queries = parameters.linear({f"{name}.q_proj": config.num_heads * head_dim}, hidden, split="rows")
    return Attention(
        Linear(*queries.weights, *key_value.weights, split="rows"),
        parameters.linear({f"{name}.o_proj": hidden}, config.num_heads * head_dim, split="columns"),
        layer=index,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=head_dim,
        q_norm=parameters.norm(f"{name}.q_norm", head_dim, config.rms_norm_eps),
        k_norm=k_norm,
    )
