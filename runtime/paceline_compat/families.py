"""Architecture names and the families they belong to. The runtime's model registry has one model per served family."""

from __future__ import annotations

from typing import Any

FAMILY_OF_ARCHITECTURE = {
    "LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen4ExpForCausalLM": "qwen4_exp",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp",
}

FAMILY_OF_GGUF_ARCHITECTURE = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen35": "qwen3_5",
    "qwen35moe": "qwen3_5_moe",
    "qwen4exp": "qwen4_exp",
}

SERVED_FAMILIES = ("llama", "qwen3", "qwen3_5", "qwen3_5_moe")
HYBRID_FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen4_exp")
MOE_FAMILIES = ("qwen3_5_moe", "qwen4_exp")

SERVED_GGUF_ARCHITECTURES = ("llama",)
"""GGUF architectures whose converter's transforms the loader undoes; the others are known, and refused by name."""

SERVED_GGML_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")

GGUF_KEYS = {
    "llama": frozenset(
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
}
"""Metadata keys that the loader of a served GGUF architecture understands; any other may change the computation."""

SERVED_ROPES = ("default", "linear", "llama3", "yarn")

ROPE_FIELDS = {
    "default": (frozenset[str](), frozenset({"original_max_position_embeddings"})),
    "linear": (frozenset({"factor"}), frozenset({"original_max_position_embeddings"})),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "yarn": (
        frozenset[str](),
        frozenset(
            {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}
            | {"mscale", "mscale_all_dim", "truncate"}
        ),
    ),
}
"""Rope kind -> fields that must be stated, and those that may be; yarn's factor follows from the contexts."""

NEUTRAL_FIELDS: dict[str, tuple[Any, ...]] = {
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
"""Config fields that change what a decoder computes, with the values that do not; absence and null never do."""

_HYBRID_FIELDS: dict[str, tuple[Any, ...]] = {"attn_output_gate": (True,), "output_gate_type": ("silu", "swish")}
FAMILY_NEUTRAL_FIELDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"sliding_window": (), "num_experts": (0,)},
    "qwen3": {"num_experts": (0,)},
    "qwen3_5": _HYBRID_FIELDS,
    "qwen3_5_moe": _HYBRID_FIELDS | {"norm_topk_prob": (True,), "mlp_only_layers": ([],), "decoder_sparse_step": (1,)},
}
"""The same for one family each: a window that qwen3 states without using makes another decoder of a llama."""
