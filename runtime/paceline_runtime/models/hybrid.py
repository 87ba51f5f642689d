"""What the layers of the hybrid families are made of: Gated DeltaNet, gated full attention in every few of them, any MLP.

The families' modules use it; they differ in the MLP, which they hand in. The MTP head gets its attention here too.
"""

from __future__ import annotations

import torch

from paceline_compat.facts.records import TargetFacts
from paceline_kernels.delta_step import DeltaWeights
from paceline_kernels.place_heads import HeadLayout
from paceline_runtime.cache.gated_delta_states import state_dtype
from paceline_runtime.layers.gated_attention import GatedAttention
from paceline_runtime.layers.gated_delta import GatedDeltaNet
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import LayerContext, MakeMlp, Mixer, Recipe


def hybrid_recipe(facts: TargetFacts, mlp: MakeMlp) -> Recipe:
    """Zero-centred norms everywhere but inside the recurrence."""

    def attention(name: str, index: int, parameters: Parameters) -> Mixer:
        layer = gated_attention(facts, f"{name}.self_attn", index, parameters)
        return lambda x, context: layer(x, context.attention)

    def recurrence(name: str, index: int, parameters: Parameters) -> Mixer:
        layer = _delta(facts, f"{name}.linear_attn", index, parameters)

        def mix(x: torch.Tensor, context: LayerContext) -> torch.Tensor:
            assert context.delta is not None, "a recurrent layer needs states"
            return layer(x, context.delta)

        return mix

    return Recipe(attention, mlp, recurrence, zero_centred_norms=True)


def gated_attention(facts: TargetFacts, name: str, layer: int, parameters: Parameters) -> GatedAttention:
    """The attention whose tensors' names begin with `name`, over the K/V pages of layer `layer`."""
    heads, kv_heads, head_dim = facts.num_heads, facts.num_kv_heads, facts.head_dim
    rows = {"q_proj": 2 * heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
    return GatedAttention(
        parameters.linear(
            {f"{name}.{part}": size for part, size in rows.items()}, facts.hidden_size, split="rows", bias=facts.qkv_bias
        ),
        parameters.linear({f"{name}.o_proj": facts.hidden_size}, heads * head_dim, split="columns", bias=facts.out_bias),
        HeadLayout(heads, kv_heads, head_dim, gated=True),
        *(parameters.norm(f"{name}.{part}", head_dim, facts.rms_norm_eps, zero_centred=True) for part in ("q_norm", "k_norm")),
        layer=layer,
    )


def _delta(facts: TargetFacts, name: str, layer: int, parameters: Parameters) -> GatedDeltaNet:
    assert facts.gdn is not None, f"{facts.family} is no hybrid"
    gdn, wide = facts.gdn, state_dtype(parameters.dtype)
    rows = {"qkv": gdn.conv_dim, "z": gdn.value_width, "b": gdn.num_value_heads, "a": gdn.num_value_heads}
    projections = {f"{name}.in_proj_{part}": size for part, size in rows.items()}
    return GatedDeltaNet(
        parameters.linear(projections, facts.hidden_size, split="rows"),
        DeltaWeights(
            conv=parameters.tensor(f"{name}.conv1d.weight", gdn.conv_dim, 1, gdn.conv_kernel_size)[:, 0],
            log_rate=parameters.tensor(f"{name}.A_log", gdn.num_value_heads, dtype=wide),
            rate_bias=parameters.tensor(f"{name}.dt_bias", gdn.num_value_heads, dtype=wide),
            norm=parameters.tensor(f"{name}.norm.weight", gdn.value_head_dim, dtype=wide),
            norm_eps=facts.rms_norm_eps,
            num_key_heads=gdn.num_key_heads,
            num_value_heads=gdn.num_value_heads,
            key_dim=gdn.key_head_dim,
            value_dim=gdn.value_head_dim,
        ),
        parameters.linear({f"{name}.out_proj": facts.hidden_size}, gdn.value_width, split="columns"),
        layer=layer,
    )
