"""The released targets and DFlash 2 drafts as far as they are public, and small pairs cut from the same cloth.

INFERRED names the fields that no public file confirms: they follow from parameter counts and from sibling models, and
are to be compared with the real files where those can be had.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from paceline_compat import DraftFacts, TargetFacts, draft_facts, target_facts
from paceline_compat.formats.tensors import TensorInfo

Shapes = dict[str, tuple[int, ...]]


def table(shapes: Shapes, dtype: str = "BF16", file: str = "model.safetensors") -> dict[str, TensorInfo]:
    """A tensor table with these shapes, laid out one after the other."""
    size = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}[dtype]
    out, offset = {}, 8
    for name, shape in shapes.items():
        out[name] = TensorInfo(name, dtype, shape, file, offset, math.prod(shape) * size)
        offset += math.prod(shape) * size
    return out


def _draft_config(**own: Any) -> dict[str, Any]:
    nested = {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    }
    nested |= {key: own.pop(key) for key in list(own) if key in nested}
    num_layers = own.get("num_hidden_layers", 5)
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 5120,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 17408,
        "layer_types": ["sliding_attention"] * num_layers,
        "sliding_window": 2048,
        "rope_theta": 10_000_000,
        "rope_scaling": None,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": 248320,
        "tie_word_embeddings": False,
        "is_causal": False,
        "num_target_layers": 64,
        "torch_dtype": None,
        "dflash_config": nested,
    } | own


def _target_config(architecture: str, **text: Any) -> dict[str, Any]:
    common = {
        "head_dim": 256,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1,
        "eos_token_id": [248044, 248046],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    return {
        "architectures": [architecture],
        "tie_word_embeddings": False,
        "vision_config": {"hidden_size": 1152},
        "text_config": common | text,
    }


@dataclass(frozen=True)
class ReleasedPair:
    """A target's and a draft's `config.json`, and what is published about them."""

    name: str
    target_config: dict[str, Any]
    draft_config: dict[str, Any]
    draft_params: int
    draft_params_are_published: bool
    inferred: frozenset[str] = frozenset()


QWEN_27B = ReleasedPair(
    "Qwen3.8-27B",
    _target_config(
        "Qwen3_5ForConditionalGeneration",
        hidden_size=5120,
        num_hidden_layers=64,
        intermediate_size=17408,
        num_attention_heads=24,
        num_key_value_heads=4,
        linear_num_value_heads=48,
    ),
    _draft_config(),
    draft_params=1_924_404_480,
    draft_params_are_published=True,
)

QWEN_35B = ReleasedPair(
    "Qwen3.6-35B-A3B",
    _target_config(
        "Qwen3_5MoeForConditionalGeneration",
        hidden_size=2048,
        num_hidden_layers=40,
        num_attention_heads=16,
        num_key_value_heads=2,
        linear_num_value_heads=32,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
    _draft_config(
        hidden_size=2048,
        num_hidden_layers=6,
        intermediate_size=6144,
        num_target_layers=40,
        target_layer_ids=[1, 6, 11, 16, 22, 27, 32, 37],
        mask_token_id=248077,
    ),
    draft_params=526_251_520,
    draft_params_are_published=False,
    inferred=frozenset({
        "num_attention_heads", "intermediate_size", "rope_theta", "max_position_embeddings", "rms_norm_eps",
        "hidden_act", "attention_bias", "conv_kernel_size", "conv_group_size", "selector_rank", "num_target_layers",
    }),
)  # fmt: skip

QWEN_FLASH_NEXT = ReleasedPair(
    "Qwen3.8-Flash-Next",
    _target_config(
        "Qwen4ExpForConditionalGeneration",
        hidden_size=2560,
        num_hidden_layers=48,
        num_attention_heads=24,
        num_key_value_heads=2,
        linear_num_value_heads=48,
        num_experts=512,
        num_experts_per_tok=10,
        moe_intermediate_size=640,
        shared_expert_intermediate_size=640,
    ),
    _draft_config(
        hidden_size=2560,
        intermediate_size=7680,
        num_target_layers=48,
        target_layer_ids=[1, 12, 23, 34, 45],
        mask_token_id=248077,
    ),
    draft_params=603_065_600,
    draft_params_are_published=False,
    inferred=frozenset({
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
        "rope_theta", "max_position_embeddings", "rms_norm_eps", "hidden_act", "attention_bias", "vocab_size",
        "conv_kernel_size", "conv_group_size", "selector_rank", "target_layer_ids", "mask_token_id",
        "num_target_layers",
    }),
)  # fmt: skip

RELEASED_PAIRS = (QWEN_27B, QWEN_35B, QWEN_FLASH_NEXT)

TINY_TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}

TINY_HYBRID_CONFIG: dict[str, Any] = TINY_TARGET_CONFIG | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}

TINY_DRAFT_CONFIG: dict[str, Any] = _draft_config(
    hidden_size=64,
    num_hidden_layers=2,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=96,
    max_position_embeddings=512,
    num_target_layers=4,
    sliding_window=32,
    target_layer_ids=[0, 2],
    mask_token_id=95,
    selector_rank=8,
    selector_top_k=4,
)


def draft_shapes(config: dict[str, Any]) -> Shapes:
    """A draft's tensors by the names and shapes that the method's description gives, from its config alone."""
    c = config | config.get("dflash_config", {})
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    groups = hidden // c["conv_group_size"]
    shapes: Shapes = {"fc.weight": (hidden, len(c["target_layer_ids"]) * hidden)}
    shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(c["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        shapes[layer + "self_attn.q_proj.weight"] = (c["num_attention_heads"] * dim, hidden)
        for name in ("k_proj", "v_proj"):
            shapes[layer + f"self_attn.{name}.weight"] = (c["num_key_value_heads"] * dim, hidden)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, c["num_attention_heads"] * dim)
        shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (dim,)
        for conv in ("attention_conv", "mlp_conv"):
            shapes[layer + f"{conv}.base_kernel"] = (2, c["conv_kernel_size"], hidden)
            shapes[layer + f"{conv}.kernel_projection.weight"] = (2 * c["conv_kernel_size"] * groups, hidden)
        shapes[layer + "mlp.gate_proj.weight"] = shapes[layer + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[layer + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["candidate_selector.hidden_projection.weight"] = (c["selector_rank"], hidden)
    for side in ("predecessor", "successor"):
        shapes[f"candidate_selector.{side}_codebook"] = (c["vocab_size"], c["selector_rank"])
    return shapes


def target_shapes(config: dict[str, Any], with_mtp: bool = False) -> Shapes:
    """A target's text tensors under their Hugging Face names, from its config alone."""
    c = config | config.get("text_config", {})
    prefix = "model.language_model." if "text_config" in config else "model."
    hidden = c["hidden_size"]
    shapes: Shapes = {prefix + "embed_tokens.weight": (c["vocab_size"], hidden), prefix + "norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    interval = c.get("full_attention_interval", 1)
    for i in range(c["num_hidden_layers"]):
        shapes |= _target_layer(f"{prefix}layers.{i}.", c, is_full=(i + 1) % interval == 0)
    if with_mtp:
        shapes |= {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}
        shapes |= {"mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (hidden,)}
        shapes |= _target_layer("mtp.layers.0.", c, is_full=True)
    return shapes


def _target_layer(prefix: str, c: dict[str, Any], is_full: bool) -> Shapes:
    hidden, dim = c["hidden_size"], c["head_dim"]
    out: Shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    if is_full:
        gated = 2 if "linear_num_key_heads" in c else 1
        out["self_attn.q_proj.weight"] = (gated * c["num_attention_heads"] * dim, hidden)
        for name in ("k_proj", "v_proj"):
            out[f"self_attn.{name}.weight"] = (c["num_key_value_heads"] * dim, hidden)
        out["self_attn.o_proj.weight"] = (hidden, c["num_attention_heads"] * dim)
        out["self_attn.q_norm.weight"] = out["self_attn.k_norm.weight"] = (dim,)
    else:
        heads, value = c["linear_num_value_heads"], c["linear_num_value_heads"] * c["linear_value_head_dim"]
        conv = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + value
        out |= {"linear_attn.in_proj_qkv.weight": (conv, hidden), "linear_attn.in_proj_z.weight": (value, hidden)}
        out |= {"linear_attn.in_proj_a.weight": (heads, hidden), "linear_attn.in_proj_b.weight": (heads, hidden)}
        out |= {"linear_attn.conv1d.weight": (conv, 1, c["linear_conv_kernel_dim"]), "linear_attn.A_log": (heads,)}
        out |= {"linear_attn.dt_bias": (heads,), "linear_attn.norm.weight": (c["linear_value_head_dim"],)}
        out["linear_attn.out_proj.weight"] = (hidden, value)
    return {prefix + name: shape for name, shape in (out | _mlp(c)).items()}


def _mlp(c: dict[str, Any]) -> Shapes:
    hidden = c["hidden_size"]
    if "num_experts" not in c:
        inner = c["intermediate_size"]
        up = {f"mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        return up | {"mlp.down_proj.weight": (hidden, inner)}
    experts, inner, shared = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
    return {
        "mlp.gate.weight": (experts, hidden),
        "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
        "mlp.experts.down_proj": (experts, hidden, inner),
        "mlp.shared_expert.gate_proj.weight": (shared, hidden),
        "mlp.shared_expert.up_proj.weight": (shared, hidden),
        "mlp.shared_expert.down_proj.weight": (hidden, shared),
        "mlp.shared_expert_gate.weight": (1, hidden),
    }


def released_target(pair: ReleasedPair, with_mtp: bool = True) -> TargetFacts:
    """Facts of a released target, from its config and the shapes that follow from it."""
    return target_facts(pair.name, pair.target_config, table(target_shapes(pair.target_config, with_mtp)))


def released_draft(pair: ReleasedPair) -> DraftFacts:
    """Facts of a released draft, from its config and the shapes that follow from it."""
    return draft_facts(f"{pair.name}-DFlash2", pair.draft_config, table(draft_shapes(pair.draft_config)))


def tiny_target(config: dict[str, Any] = TINY_TARGET_CONFIG, **changes: Any) -> TargetFacts:
    """A small target; tensors follow the unchanged config, so a change breaks only what it is about."""
    return target_facts("tiny", config | changes, table(target_shapes(config)))


def tiny_draft_config(**changes: Any) -> dict[str, Any]:
    """The tiny draft's config; changes go to where the released configs keep the field, None takes it out there."""
    nested = dict(TINY_DRAFT_CONFIG["dflash_config"])
    outer = TINY_DRAFT_CONFIG | {key: value for key, value in changes.items() if key not in nested}
    nested |= {key: value for key, value in changes.items() if key in nested}
    return outer | {"dflash_config": {key: value for key, value in nested.items() if value is not None}}


def tiny_draft(shapes: Shapes | None = None, dtype: str = "BF16", **changes: Any) -> DraftFacts:
    """A draft that fits `tiny_target` but for what the changes break; its tensors do not follow them."""
    tensors = table(shapes or draft_shapes(TINY_DRAFT_CONFIG), dtype)
    return draft_facts("tiny-draft", tiny_draft_config(**changes), tensors)


def reshaped_draft(**changes: Any) -> DraftFacts:
    """A tiny draft whose tensors follow the changed sizes."""
    config = tiny_draft_config(**changes)
    return draft_facts("tiny-draft", config, table(draft_shapes(config)))
