"""Names and shapes of a target's tensors as safetensors checkpoints of the served families store them.

Rules hold a checkpoint's header against them before a GPU is taken for it, the loader again before memory is; models take
the same names. It knows no format: a GGUF's tensors come under these names too.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline_compat.facts.records import LINEAR_ATTENTION, GdnFacts, MoeFacts, TargetFacts

Shapes = dict[str, tuple[int, ...]]

_UNREAD = ".rotary_emb.inv_freq"


def expected_shapes(target: TargetFacts) -> Shapes:
    """Every tensor that the family's model asks for; experts stacked or one by one, as the checkpoint has them."""
    prefix, rows, hidden = target.prefix, target.head_rows, target.hidden_size
    shapes: Shapes = {f"{prefix}.embed_tokens.weight": (rows, hidden), f"{prefix}.norm.weight": (hidden,)}
    if not target.tie_word_embeddings:
        shapes["lm_head.weight"] = (rows, hidden)
    for layer, kind in enumerate(target.layer_types):
        is_linear = kind == LINEAR_ATTENTION and target.gdn is not None
        shapes |= _layer(target, f"{prefix}.layers.{layer}", target.gdn if is_linear else None, target.tensors)
    return shapes


def expected_mtp_shapes(target: TargetFacts) -> Shapes:
    """Every tensor of the hybrids' own draft head, whose one layer is always full attention."""
    hidden = target.hidden_size
    norms = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
    shapes: Shapes = {f"{name}.weight": (hidden,) for name in norms}
    stored = {mtp_name(name) for name in target.tensors}
    return shapes | {"mtp.fc.weight": (hidden, 2 * hidden)} | _layer(target, "mtp.layers.0", None, stored)


def mtp_name(stored: str) -> str:
    """The name used here for a tensor of the head as a checkpoint spells it."""
    return stored.removeprefix("model.")


def is_unread(target: TargetFacts, name: str) -> bool:
    """Whether a tensor may be there without a place of its own."""
    is_text = target.component_of(name) == "text"
    return not is_text or name.endswith(_UNREAD) or target.is_tied_head(name)


def is_wide(target: TargetFacts, name: str) -> bool:
    """Whether a tensor is kept in float32 at least: a hybrid's vectors, which are norms stored less 1, and rates of decay."""
    return target.gdn is not None and len(target.tensors[name].shape) == 1 and not name.endswith(".bias")


def _layer(target: TargetFacts, name: str, gdn: GdnFacts | None, stored: Collection[str]) -> Shapes:
    hidden = target.hidden_size
    mixer = _attention(target) if gdn is None else _delta(gdn, hidden)
    mlp = _mlp("mlp", hidden, target.intermediate_size, target.mlp_bias)
    if target.moe is not None:
        mlp = _mixture(target.moe, hidden, name, stored)
    norms: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    return {f"{name}.{part}": shape for part, shape in (norms | mixer | mlp).items()}


def _attention(target: TargetFacts) -> Shapes:
    hidden, dim, gates = target.hidden_size, target.head_dim, 1 + (target.gdn is not None)
    q_rows, kv_rows = target.num_heads * dim, target.num_kv_heads * dim
    shapes: Shapes = {}
    for part, rows in {"q": gates * q_rows, "k": kv_rows, "v": kv_rows}.items():
        shapes |= _linear(f"self_attn.{part}_proj", rows, hidden, target.qkv_bias)
    if target.has_head_norms:
        shapes |= {f"self_attn.{name}.weight": (dim,) for name in ("q_norm", "k_norm")}
    return shapes | _linear("self_attn.o_proj", hidden, q_rows, target.out_bias)


def _delta(gdn: GdnFacts, hidden: int) -> Shapes:
    heads, values = gdn.num_value_heads, gdn.value_width
    rows = {"qkv": gdn.conv_dim, "z": values, "b": heads, "a": heads}
    return {f"linear_attn.in_proj_{part}.weight": (size, hidden) for part, size in rows.items()} | {
        "linear_attn.conv1d.weight": (gdn.conv_dim, 1, gdn.conv_kernel_size),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (gdn.value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _mlp(name: str, hidden: int, inner: int, bias: bool = False) -> Shapes:
    gate, up = (_linear(f"{name}.{part}_proj", inner, hidden, bias) for part in ("gate", "up"))
    return gate | up | _linear(f"{name}.down_proj", hidden, inner, bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if bias else weight


def _mixture(moe: MoeFacts, hidden: int, layer: str, stored: Collection[str]) -> Shapes:
    """Experts one by one where the layer's are stored so; never more than there are tensors, whatever a config claims."""
    inner = moe.intermediate_size
    shared = _mlp("mlp.shared_expert", hidden, moe.shared_intermediate_size)
    shapes = {"mlp.gate.weight": (moe.num_experts, hidden), "mlp.shared_expert_gate.weight": (1, hidden)} | shared
    stacked: Shapes = {
        "mlp.experts.gate_up_proj": (moe.num_experts, 2 * inner, hidden),
        "mlp.experts.down_proj": (moe.num_experts, hidden, inner),
    }
    is_stacked = any(f"{layer}.{name}" in stored for name in stacked) or moe.num_experts > len(stored)
    if is_stacked or f"{layer}.mlp.experts.0.down_proj.weight" not in stored:
        return shapes | stacked
    for expert in range(moe.num_experts):
        shapes |= _mlp(f"mlp.experts.{expert}", hidden, inner)
    return shapes
