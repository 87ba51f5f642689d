"""A GGUF header -> target facts. `checkpoint` calls it.

Key names: the GGUF format page and the converters of llama.cpp. `block_count` includes MTP layers there.
"""

from __future__ import annotations

from paceline_compat.errors import MetadataError
from paceline_compat.facts.families import BY_GGUF_ARCHITECTURE, UNKNOWN, GgufForm
from paceline_compat.facts.gguf_names import EMBEDDING, our_tensors
from paceline_compat.facts.gguf_rope import read_gguf_rope
from paceline_compat.facts.records import FULL_ATTENTION, LINEAR_ATTENTION, GdnFacts, MoeFacts, TargetFacts, main_dtype
from paceline_compat.facts.rope_fields import stretched_positions
from paceline_compat.facts.target_fields import attention_biases, head_rows
from paceline_compat.formats.fields import MAX_LAYERS
from paceline_compat.formats.ggml_types import BY_NAME
from paceline_compat.formats.gguf_header import GgufArray, GgufHeader, read_header
from paceline_compat.formats.tensors import TensorInfo
from paceline_compat.places.source import Source


class _Keys:
    """The header's keys under its architecture's prefix; absent sizes of an unknown architecture read as 0."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header
        self.architecture = header.require("general.architecture", str)
        self.family = BY_GGUF_ARCHITECTURE.get(self.architecture, UNKNOWN)
        self.is_known = self.family is not UNKNOWN

    @property
    def form(self) -> GgufForm:
        """How the family is written; one that is not known has no keys that are."""
        return self.family.gguf or GgufForm(self.architecture)

    def size(self, key: str, default: int | None = None) -> int:
        name = f"{self.architecture}.{key}"
        value = self.header.get(name, int, default if self.is_known else default or 0)
        if value is None:
            raise MetadataError(self.header.source.name, f"metadata key {name!r} is missing")
        if value < (1 if self.is_known and default != 0 else 0):
            raise MetadataError(self.header.source.name, f"metadata key {name!r} is {value}, not a positive integer")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.header.get(f"{self.architecture}.{key}", float, default)
        if value is None or not 0 < value < float("inf"):
            raise MetadataError(self.header.source.name, f"metadata key '{self.architecture}.{key}' is {value}")
        return value

    def per_layer_size(self, key: str, default: int | None = None) -> int:
        """A size that some converters write as one number per layer; a hybrid's zeros stand for layers without it."""
        if not self.is_known:
            return 0
        if not isinstance(self.header.metadata.get(f"{self.architecture}.{key}"), GgufArray):
            return self.size(key, default)
        values = {int(v) for v in self.header.numbers(f"{self.architecture}.{key}")}
        values -= {0} if self.family.is_hybrid else set()
        if len(values) != 1:
            raise MetadataError(self.header.source.name, f"metadata key '{self.architecture}.{key}' differs by layer")
        return values.pop()


def read_gguf_target(source: Source) -> TargetFacts:
    """Facts of a GGUF model file. Raises MetadataError naming the key that is missing or wrong."""
    header = read_header(source)
    keys = _Keys(header)
    num_mtp = keys.size("nextn_predict_layers", 0)
    num_layers = keys.size("block_count") - num_mtp
    if num_layers > MAX_LAYERS or (keys.is_known and num_layers < 1):
        raise MetadataError(source.name, f"metadata key '{keys.architecture}.block_count' leaves {num_layers} layers")
    num_heads, hidden_size = keys.per_layer_size("attention.head_count"), keys.size("embedding_length")
    num_kv_heads = keys.per_layer_size("attention.head_count_kv", num_heads)
    if num_heads % max(num_kv_heads, 1):
        what = f"{keys.architecture}.attention.head_count {num_heads} is no multiple of head_count_kv {num_kv_heads}"
        raise MetadataError(source.name, what)
    head_dim = keys.size("attention.key_length", hidden_size // max(num_heads, 1))
    max_positions, tensors = keys.size("context_length"), our_tensors(header, keys.form)
    rope, strange = read_gguf_rope(header, keys.form, head_dim, max_positions)
    embedding = tensors.get(EMBEDDING) or tensors.get("token_embd.weight")
    vocab_size = _vocab_size(keys, embedding)
    qkv_bias, out_bias = attention_biases(keys.family, "blk.0.attn_q.bias" in header.tensors)
    return TargetFacts(
        name=source.name,
        format="gguf",
        architecture=keys.architecture,
        family=keys.family.name or None,
        num_layers=num_layers,
        layer_types=_layer_types(keys, num_layers),
        hidden_size=hidden_size,
        intermediate_size=keys.per_layer_size("feed_forward_length", 0 if keys.family.has_experts else None),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        head_rows=head_rows(embedding, vocab_size),
        max_positions=stretched_positions(max_positions, rope),
        tie_word_embeddings="output.weight" not in header.tensors,
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=rope,
        gdn=_gdn(keys) if keys.family.is_hybrid else None,
        moe=_moe(keys) if keys.family.has_experts else None,
        num_mtp_layers=num_mtp if any(".nextn." in name for name in header.tensors) else 0,
        eos_token_ids=tuple(sorted(named_ends(header))),
        quantization=_quantization(header.tensors),
        dtype=main_dtype(header.tensors),
        has_head_norms=keys.family.has_head_norms,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        num_splits=header.split_count,
        variants=_variants(keys, head_dim) | strange,
        tensors=tensors,
    )


def _vocab_size(keys: _Keys, embedding: TensorInfo | None) -> int:
    """The stated size, or the number of tokens; an embedding may have more rows, and counts where the header states neither."""
    tokens = keys.header.metadata.get("tokenizer.ggml.tokens")
    stated = keys.size("vocab_size", 0) or (tokens.count if isinstance(tokens, GgufArray) else 0)
    return stated or (embedding.shape[0] if embedding is not None else 0)


def _layer_types(keys: _Keys, num_layers: int) -> tuple[str, ...]:
    if not keys.family.is_hybrid:
        return (FULL_ATTENTION,) * max(num_layers, 0)
    if f"{keys.architecture}.attention.recurrent_layers" in keys.header.metadata:
        flags = keys.header.numbers(f"{keys.architecture}.attention.recurrent_layers")[:num_layers]
    else:
        interval = keys.size("full_attention_interval", 4)
        flags = [bool((i + 1) % interval) for i in range(num_layers)]
    return tuple(LINEAR_ATTENTION if flag else FULL_ATTENTION for flag in flags)


def _gdn(keys: _Keys) -> GdnFacts:
    num_value_heads = keys.size("ssm.time_step_rank")
    return GdnFacts(
        num_key_heads=keys.size("ssm.group_count"),
        num_value_heads=num_value_heads,
        key_head_dim=keys.size("ssm.state_size"),
        value_head_dim=keys.size("ssm.inner_size") // num_value_heads,
        conv_kernel_size=keys.size("ssm.conv_kernel"),
    )


def _moe(keys: _Keys) -> MoeFacts:
    return MoeFacts(
        num_experts=keys.size("expert_count"),
        num_experts_per_token=keys.size("expert_used_count"),
        intermediate_size=keys.size("expert_feed_forward_length"),
        shared_intermediate_size=keys.size("expert_shared_feed_forward_length", 0),
    )


def _variants(keys: _Keys, head_dim: int) -> dict[str, object]:
    """Keys and experts that a served architecture does not know, and values of another width than keys."""
    if not keys.form.modules:
        return {}
    prefix = f"{keys.architecture}."
    own = {key.removeprefix(prefix): value for key, value in keys.header.metadata.items() if key.startswith(prefix)}
    variants: dict[str, object] = {f"{prefix}{key}": value for key, value in own.items() if key not in keys.form.keys}
    if num_experts := keys.size("expert_count", 0):
        variants[f"{prefix}expert_count"] = num_experts
    if (value_dim := keys.size("attention.value_length", head_dim)) != head_dim:
        variants[f"{prefix}attention.value_length"] = value_dim
    return variants


def named_ends(header: GgufHeader) -> set[int]:
    """Ids that the metadata says end a generation; the vocabulary spells more, which takes reading it."""
    ids = (header.get(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom"))
    return {token for token in ids if token is not None}


def _quantization(tensors: dict[str, TensorInfo]) -> str | None:
    """The quantized type that holds most bytes, or None for a plain float file."""
    return main_dtype({n: t for n, t in tensors.items() if BY_NAME[t.dtype].is_quantized}) or None
