"""Names and shapes of a target's text tensors as safetensors checkpoints of the served families store them.

Used by the rules, so that a file which misses a tensor is refused before a GPU is taken for it. It knows neither GGUF nor
quantized weights.
"""

from __future__ import annotations

from .facts import LINEAR_ATTENTION, GdnFacts, MoeFacts, TargetFacts
from .families import HYBRID_FAMILIES
from .tensors import TensorInfo

Shapes = dict[str, tuple[int, ...]]

_NESTED, _PLAIN = "model.language_model", "model"
_UNREAD = ".rotary_emb.inv_freq"
_ATTENTION_PARTS = tuple(f".self_attn.{part}_proj" for part in "qkvo")
_MLP_PARTS = tuple(f".mlp.{part}_proj" for part in ("gate", "up", "down"))


def expected_shapes(target: TargetFacts) -> Shapes:
    """Every tensor that the family's loader asks for; experts stacked or one by one, as the checkpoint has them."""
    prefix = _NESTED if f"{_NESTED}.embed_tokens.weight" in target.tensors else _PLAIN
    embedding = target.tensors.get(f"{prefix}.embed_tokens.weight")
    rows, hidden = _padded_rows(embedding, target.vocab_size), target.hidden_size
    shapes: Shapes = {f"{prefix}.embed_tokens.weight": (rows, hidden), f"{prefix}.norm.weight": (hidden,)}
    if not target.tie_word_embeddings:
        shapes["lm_head.weight"] = (rows, hidden)
    for layer, kind in enumerate(target.layer_types):
        name = f"{prefix}.layers.{layer}"
        is_linear = kind == LINEAR_ATTENTION and target.gdn is not None
        mixer = _delta(target.gdn, hidden) if is_linear and target.gdn else _attention(target)
        mlp = _mlp("mlp", hidden, target.intermediate_size) if target.moe is None else _mixture(target, target.moe, name)
        norms: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        shapes |= {f"{name}.{part}": shape for part, shape in (norms | mixer | mlp).items()}
    return shapes | _biases(target, shapes)


def _biases(target: TargetFacts, shapes: Shapes) -> Shapes:
    """Of the modules that the config's switches give one; the hybrids' MLPs never have any."""
    parts = _ATTENTION_PARTS if target.attention_bias else ()
    if target.mlp_bias and target.family not in HYBRID_FAMILIES:
        parts += _MLP_PARTS
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items()}
    return {f"{name}.bias": (shape[0],) for name, shape in modules.items() if name.endswith(parts)}


def is_unread(target: TargetFacts, name: str) -> bool:
    """Whether a tensor may be there without a place of its own."""
    is_text = target.component_of(name) == "text"
    return not is_text or name.endswith(_UNREAD) or target.is_tied_head(name)


def _padded_rows(embedding: TensorInfo | None, vocab_size: int) -> int:
    """Embedding and head may both be stored with more rows than there are ids."""
    return max(vocab_size, embedding.shape[0]) if embedding is not None and embedding.shape else vocab_size


def _attention(target: TargetFacts) -> Shapes:
    hidden, dim, gates = target.hidden_size, target.head_dim, 1 + (target.family in HYBRID_FAMILIES)
    q_rows, kv_rows = target.num_heads * dim, target.num_kv_heads * dim
    rows = {"q_proj": gates * q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
    shapes: Shapes = {f"self_attn.{name}.weight": (size, hidden) for name, size in rows.items()}
    if target.family != "llama":
        shapes |= {f"self_attn.{name}.weight": (dim,) for name in ("q_norm", "k_norm")}
    return shapes | {"self_attn.o_proj.weight": (hidden, q_rows)}


def _delta(gdn: GdnFacts, hidden: int) -> Shapes:
    heads, values = gdn.num_value_heads, gdn.num_value_heads * gdn.value_head_dim
    rows = {"qkv": gdn.conv_dim, "z": values, "b": heads, "a": heads}
    return {f"linear_attn.in_proj_{part}.weight": (size, hidden) for part, size in rows.items()} | {
        "linear_attn.conv1d.weight": (gdn.conv_dim, 1, gdn.conv_kernel_size),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (gdn.value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _mlp(name: str, hidden: int, inner: int) -> Shapes:
    up: Shapes = {f"{name}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
    return up | {f"{name}.down_proj.weight": (hidden, inner)}


def _mixture(target: TargetFacts, moe: MoeFacts, layer: str) -> Shapes:
    hidden, inner = target.hidden_size, moe.intermediate_size
    shared = _mlp("mlp.shared_expert", hidden, moe.shared_intermediate_size)
    shapes = {"mlp.gate.weight": (moe.num_experts, hidden), "mlp.shared_expert_gate.weight": (1, hidden)} | shared
    stacked: Shapes = {
        "mlp.experts.gate_up_proj": (moe.num_experts, 2 * inner, hidden),
        "mlp.experts.down_proj": (moe.num_experts, hidden, inner),
    }
    is_stacked = any(f"{layer}.{name}" in target.tensors for name in stacked)
    if is_stacked or f"{layer}.mlp.experts.0.down_proj.weight" not in target.tensors:
        return shapes | stacked
    for expert in range(moe.num_experts):
        shapes |= _mlp(f"mlp.experts.{expert}", hidden, inner)
    return shapes
