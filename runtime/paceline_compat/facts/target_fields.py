"""Parts of a target's `config.json` that take several fields to tell. `checkpoint` uses it; it opens no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_compat.facts.families import NEUTRAL_FIELDS, Family
from paceline_compat.facts.records import FULL_ATTENTION, LINEAR_ATTENTION, SLIDING_ATTENTION, GdnFacts, MoeFacts, TargetFacts
from paceline_compat.formats.fields import Fields
from paceline_compat.formats.tensors import TensorInfo

PREFIXES = ("model.language_model", "model")


def sliding_window(fields: Fields, family: Family) -> int | None:
    """The window that the family's class gives to some layers: where a config leaves it out, the class has a default."""
    switch, stated = fields.optional_flag("use_sliding_window"), fields.optional_integer("sliding_window")
    if family.window == "none" or (family.window == "switched" and not switch):
        return None
    return stated if "sliding_window" in fields.data else family.default_window


def layer_types(fields: Fields, family: Family, num_layers: int, window: int | None) -> tuple[str, ...]:
    """The kind of every layer: as stated, or what the family's defaults make of the other fields."""
    first_windowed = num_layers if window is None else 0
    if window is not None and family.window == "switched":
        stated = fields.optional_integer("max_window_layers")
        first_windowed = 28 if stated is None else stated
    interval = fields.size("full_attention_interval", family.default_full_interval) if family.is_hybrid else 1
    derived = tuple(
        LINEAR_ATTENTION if (i + 1) % max(interval, 1) else FULL_ATTENTION if i < first_windowed else SLIDING_ATTENTION
        for i in range(num_layers)
    )
    kinds = fields.strings("layer_types")
    if kinds not in (None, derived) and family.window == "always":  # the class ignores it
        fields.problems.append("layer_types says of some layers what sliding_window does not say of all")
    return derived if kinds is None else kinds


def is_tied(top: Fields, fields: Fields) -> bool:
    """Whether the head is the embedding: a multimodal model's head lies outside its text part, so the top level decides."""
    stated = top.optional_flag("tie_word_embeddings")
    return bool(fields.optional_flag("tie_word_embeddings") if stated is None else stated)


def variants(fields: Fields, family: Family) -> dict[str, Any]:
    """Fields that make another decoder of the family, at values that do."""
    neutral = NEUTRAL_FIELDS | family.neutral
    stated = {name: fields.data.get(name) for name in neutral}
    return {name: value for name, value in stated.items() if value is not None and value not in neutral[name]}


def attention_biases(family: Family, is_stated: bool) -> tuple[bool, bool]:
    """Whether q, k and v have one, and whether o has."""
    return {None: (is_stated, is_stated), "qkv": (True, False), "none": (False, False)}[family.attention_bias]


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


def prefix(tensors: Mapping[str, TensorInfo], is_nested: bool) -> str:
    """What the names of the text part begin with: as stored, or as a config of its kind lets expect.

    transformers stores the text part of a multimodal model alone with the names that it had inside: a config without
    `text_config` is no sign of plain names.
    """
    stored = (prefix for prefix in PREFIXES if f"{prefix}.embed_tokens.weight" in tensors)
    return next(stored, PREFIXES[0] if is_nested else PREFIXES[1])


def head_rows(embedding: TensorInfo | None, vocab_size: int) -> int:
    """Embedding and head may both be stored with more rows than there are ids."""
    return max(vocab_size, embedding.shape[0]) if embedding is not None and embedding.shape else vocab_size


def note_contradictions(fields: Fields, facts: TargetFacts) -> None:
    """Sizes that are well-formed each and cannot be one model's."""
    if facts.num_heads % max(facts.num_kv_heads, 1):
        fields.problems.append(
            f"num_attention_heads is {facts.num_heads}, no multiple of num_key_value_heads {facts.num_kv_heads}"
        )
    if facts.moe is not None and facts.moe.num_experts_per_token > facts.moe.num_experts:
        experts = facts.moe.num_experts_per_token, facts.moe.num_experts
        fields.problems.append("num_experts_per_tok is {}, more than num_experts {}".format(*experts))
