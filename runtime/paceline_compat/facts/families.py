"""The families of models, one record each: all that tells one family's checkpoints and decoder from another's.

The readers ask it, and put what they find into the facts; rules judge those, and models are built from them. It opens no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Neutral = dict[str, tuple[Any, ...]]
"""Config fields that change what a decoder computes, with the values that do not; absence and null never do."""

NEUTRAL_FIELDS: Neutral = {
    "hidden_act": ("silu",),
    "pretraining_tp": (1,),
    "rope_interleaved": (False,),
    "is_causal": (True,),
    "clip_qkv": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1.0,),
    "logits_scaling": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (),
    "no_rope_layers": ([],),
    "num_local_experts": (0,),
}

SERVED_GGML_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class GgufForm:
    """A family as llama.cpp's converter writes it. Without `modules` it is known, and refused by name.

    `keys` are the metadata keys that are understood: any other may change the computation. `modules` maps the names of a
    layer's modules to ours. `is_neox` is false where the converter reorders the rows of q and k for neighbours to rotate.
    """

    architecture: str
    keys: frozenset[str] = frozenset()
    modules: Mapping[str, str] = field(default_factory=dict)
    is_neox: bool = True


@dataclass(frozen=True, slots=True)
class Family:
    """One family. A default stands for what a config leaves out, as transformers' class has it.

    `default_head_dim` None is the hidden size by the heads. `attention_bias` None leaves it to the config's field of that
    name whether q, k, v and o have a bias; "qkv" and "none" are what a class has whatever its config says. `window` says
    which layers a sliding window is for: none that a config states, all of them, or "switched" by `use_sliding_window`.
    """

    name: str
    architectures: tuple[str, ...] = ()
    gguf: GgufForm | None = None
    is_served: bool = True
    is_hybrid: bool = False
    has_experts: bool = False
    has_head_norms: bool = False
    attention_bias: str | None = None
    has_mlp_bias: bool | None = None
    window: str = "none"
    default_window: int = 4096
    default_head_dim: int | None = None
    default_rotary_fraction: float = 1.0
    default_full_interval: int = 1
    neutral: Neutral = field(default_factory=dict)


_HYBRID_FIELDS: Neutral = {"attn_output_gate": (True,), "output_gate_type": ("silu", "swish")}


def _hybrid(name: str, architecture: str, gguf: str, neutral: Neutral = _HYBRID_FIELDS, **own: Any) -> Family:
    """Gated DeltaNet layers with gated attention in every few of them, alone or as the text part of a multimodal model."""
    return Family(
        name,
        (f"{architecture}ForCausalLM", f"{architecture}ForConditionalGeneration"),
        GgufForm(gguf),
        is_hybrid=True,
        has_head_norms=True,
        has_mlp_bias=False,
        default_head_dim=256,
        default_rotary_fraction=0.25,
        default_full_interval=4,
        neutral=neutral,
        **own,
    )


_DENSE_GGUF_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "vocab_size",
    }
)
_DENSE_GGUF_MODULES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

FAMILIES = (
    Family(
        "llama",
        ("LlamaForCausalLM",),
        GgufForm("llama", _DENSE_GGUF_KEYS, _DENSE_GGUF_MODULES, is_neox=False),
        neutral={"sliding_window": (), "num_experts": (0,)},
    ),
    Family(
        "mistral",
        ("MistralForCausalLM",),
        attention_bias="none",
        has_mlp_bias=False,
        window="always",
        neutral={"num_experts": (0,)},
    ),
    Family(
        "qwen2",
        ("Qwen2ForCausalLM",),
        GgufForm("qwen2", _DENSE_GGUF_KEYS, _DENSE_GGUF_MODULES),
        attention_bias="qkv",
        has_mlp_bias=False,
        window="switched",
        neutral={"num_experts": (0,)},
    ),
    Family(
        "qwen3",
        ("Qwen3ForCausalLM",),
        GgufForm("qwen3"),
        has_head_norms=True,
        window="switched",
        neutral={"num_experts": (0,)},
    ),
    _hybrid("qwen3_5", "Qwen3_5", "qwen35"),
    _hybrid(
        "qwen3_5_moe",
        "Qwen3_5Moe",
        "qwen35moe",
        _HYBRID_FIELDS | {"norm_topk_prob": (True,), "mlp_only_layers": ([],), "decoder_sparse_step": (1,)},
        has_experts=True,
    ),
    _hybrid("qwen4_exp", "Qwen4Exp", "qwen4exp", {}, has_experts=True, is_served=False),
)
UNKNOWN = Family("")
"""What an architecture that no record names is read by, so that it can be refused with its name."""

BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}
BY_GGUF_ARCHITECTURE = {family.gguf.architecture: family for family in FAMILIES if family.gguf is not None}
SERVED_FAMILIES = tuple(family.name for family in FAMILIES if family.is_served)
SERVED_ARCHITECTURES = tuple(name for name, family in BY_ARCHITECTURE.items() if family.is_served)
SERVED_GGUF_ARCHITECTURES = tuple(name for name, family in BY_GGUF_ARCHITECTURE.items() if family.gguf and family.gguf.modules)
