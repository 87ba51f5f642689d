"""Parts of a target's ``config.json`` that take several fields to tell. Used by ``checkpoint``; it opens no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .facts import FULL_ATTENTION, LINEAR_ATTENTION, SLIDING_ATTENTION, GdnFacts, MoeFacts, TargetFacts
from .families import FAMILY_NEUTRAL_FIELDS, HYBRID_FAMILIES, NEUTRAL_FIELDS
from .fields import Fields
from .tensors import TensorInfo


def layer_types(fields: Fields, family: str | None, num_layers: int) -> tuple[str, ...]:
    """The kind of every layer: as stated, or what the family's defaults make of the other fields."""
    stated = fields.strings("layer_types")
    if stated is not None:
        return stated
    if family == "qwen3" and fields.optional_flag("use_sliding_window"):
        first = min(fields.size("max_window_layers", 28), num_layers)
        return (FULL_ATTENTION,) * first + (SLIDING_ATTENTION,) * (num_layers - first)
    interval = fields.size("full_attention_interval", 4) if family in HYBRID_FAMILIES else 1
    return tuple(LINEAR_ATTENTION if (i + 1) % max(interval, 1) else FULL_ATTENTION for i in range(num_layers))


def is_tied(top: Fields, fields: Fields) -> bool:
    """Whether the head is the embedding: a multimodal model's head lies outside its text part, so the top level decides."""
    stated = top.optional_flag("tie_word_embeddings")
    return bool(fields.optional_flag("tie_word_embeddings") if stated is None else stated)


def variants(fields: Fields, family: str | None) -> dict[str, Any]:
    """Fields that make another decoder of the family, at values that do."""
    neutral = NEUTRAL_FIELDS | FAMILY_NEUTRAL_FIELDS.get(family or "", {})
    stated = {name: fields.data.get(name) for name in neutral}
    return {name: value for name, value in stated.items() if value is not None and value not in neutral[name]}


def gdn(fields: Fields) -> GdnFacts:
    """Sizes of the Gated DeltaNet layers."""
    return GdnFacts(
        num_key_heads=fields.size("linear_num_key_heads"),
        num_value_heads=fields.size("linear_num_value_heads"),
        key_head_dim=fields.size("linear_key_head_dim"),
        value_head_dim=fields.size("linear_value_head_dim"),
        conv_kernel_size=fields.size("linear_conv_kernel_dim", 4),
    )


def moe(fields: Fields) -> MoeFacts:
    """Sizes of the mixtures of experts."""
    return MoeFacts(
        num_experts=fields.size("num_experts"),
        num_experts_per_token=fields.size("num_experts_per_tok"),
        intermediate_size=fields.size("moe_intermediate_size"),
        shared_intermediate_size=fields.size("shared_expert_intermediate_size"),
    )


def num_mtp_layers(fields: Fields, tensors: Mapping[str, TensorInfo]) -> int:
    """Declared MTP layers, or 0 when the weights were left out: many conversions drop them and keep the config."""
    declared = fields.optional_integer("mtp_num_hidden_layers") or 0
    present = any(name.startswith(("mtp.", "model.mtp.")) for name in tensors)
    return max(declared, 1) if present else 0


def head_rows(tensors: Mapping[str, TensorInfo], vocab_size: int) -> int:
    """Rows of the output head as stored, padding included; the vocabulary's where no tensor tells."""
    for name in ("lm_head.weight", "model.embed_tokens.weight", "model.language_model.embed_tokens.weight"):
        if name in tensors and tensors[name].shape:
            return tensors[name].shape[0]
    return vocab_size


def note_contradictions(fields: Fields, facts: TargetFacts) -> None:
    """Sizes that are well-formed each and cannot be one model's, and a switch that no fact keeps."""
    fields.optional_flag("use_sliding_window")
    if facts.num_heads % max(facts.num_kv_heads, 1):
        fields.problems.append(
            f"num_attention_heads is {facts.num_heads}, no multiple of num_key_value_heads {facts.num_kv_heads}"
        )
    if facts.moe is not None and facts.moe.num_experts_per_token > facts.moe.num_experts:
        experts = facts.moe.num_experts_per_token, facts.moe.num_experts
        fields.problems.append("num_experts_per_tok is {}, more than num_experts {}".format(*experts))
