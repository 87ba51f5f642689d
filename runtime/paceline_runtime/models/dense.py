"""What the layers of the dense families are made of: attention and a gated MLP. The families' modules use it."""

from __future__ import annotations

from paceline_compat.facts.records import TargetFacts
from paceline_kernels.place_heads import HeadLayout
from paceline_runtime.layers.attention import Attention
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import Mixer, Recipe, gated_mlps


def dense_recipe(facts: TargetFacts) -> Recipe:
    """Biases, and norms on the heads of q and k, where the facts have them."""

    def mixer(name: str, index: int, parameters: Parameters) -> Mixer:
        attention = _attention(facts, f"{name}.self_attn", index, parameters)
        return lambda x, context: attention(x, context.attention)

    return Recipe(mixer, gated_mlps(facts))


def _attention(facts: TargetFacts, name: str, layer: int, parameters: Parameters) -> Attention:
    rows, kv_rows = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    qkv = {f"{name}.q_proj": rows, f"{name}.k_proj": kv_rows, f"{name}.v_proj": kv_rows}
    norms: list[RmsNorm | None] = [None, None]
    if facts.has_head_norms:
        norms = [parameters.norm(f"{name}.{part}", facts.head_dim, facts.rms_norm_eps) for part in ("q_norm", "k_norm")]
    return Attention(
        parameters.linear(qkv, facts.hidden_size, split="rows", bias=facts.qkv_bias),
        parameters.linear({f"{name}.o_proj": facts.hidden_size}, rows, split="columns", bias=facts.out_bias),
        HeadLayout(facts.num_heads, facts.num_kv_heads, facts.head_dim),
        layer=layer,
        q_norm=norms[0],
        k_norm=norms[1],
    )
