"""A checkpoint's location -> its facts, by reading config and headers only. The way in for the CLI and the operator.

GGUF targets are read by `gguf_checkpoint`. Nothing here judges: a wrong type is an error that names the field, a
value that does not fit is kept for the rules.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from paceline_compat.errors import MetadataError
from paceline_compat.facts import target_fields
from paceline_compat.facts.draft_tensors import canonical_name
from paceline_compat.facts.families import BY_ARCHITECTURE, UNKNOWN
from paceline_compat.facts.gguf_checkpoint import read_gguf_target
from paceline_compat.facts.records import FLOAT_DTYPES, DraftFacts, TargetFacts, main_dtype
from paceline_compat.facts.rope_fields import read_rope, stretched_positions
from paceline_compat.formats import safetensors_header
from paceline_compat.formats.fields import MAX_LAYERS, Fields, read_json
from paceline_compat.formats.tensors import TensorInfo, renamed
from paceline_compat.places.location import Location, open_location
from paceline_compat.places.source import Folder, find

CONFIG_FILE = "config.json"
_DFLASH_FIELDS = frozenset(
    {"block_size", "mask_token_id", "target_layer_ids", "conv_kernel_size", "conv_group_size"}
    | {"selector_rank", "selector_top_k", "output_multiplier", "input_embedding_scale", "final_logit_softcapping"}
)
"""What the `dflash` package looks up in `dflash_config` first; it reads all else at the top level alone."""


def read_target(where: str | Location, *, with_tensors: bool = True) -> TargetFacts:
    """Facts of a target: a safetensors folder or a GGUF file. Raises MetadataError (SourceError: out of reach).

    A folder whose weights do not matter is read without its tensors.
    """
    location = open_location(where) if isinstance(where, str) else where
    if location.gguf_file is not None:
        return read_gguf_target(location.folder.open(location.gguf_file))
    folder = location.folder
    config = _read_config(folder)
    return target_facts(
        folder.name,
        config,
        safetensors_header.read_folder(folder) if with_tensors else {},
        eos_token_ids=_generation_eos(folder),
        quantization="modelopt" if find(folder, "hf_quant_config.json") else None,
    )


def read_draft(where: str | Location) -> DraftFacts:
    """Facts of a draft: a safetensors folder. Raises MetadataError (SourceError: out of reach)."""
    location = open_location(where) if isinstance(where, str) else where
    if location.gguf_file is not None:
        raise MetadataError(location.name, "is a GGUF draft", "use the draft's safetensors checkpoint")
    folder = location.folder
    return draft_facts(folder.name, _read_config(folder), safetensors_header.read_folder(folder))


def target_facts(
    name: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    eos_token_ids: tuple[int, ...] = (),
    quantization: str | None = None,
) -> TargetFacts:
    """Facts from a parsed `config.json` and tensor table; multimodal configs nest the text part in `text_config`."""
    top = Fields(f"{name}/{CONFIG_FILE}", config)
    text = top.mapping("text_config") or {}
    fields = Fields(top.source, ChainMap(text, dict(config)))
    architecture = _architecture(top)
    family = BY_ARCHITECTURE.get(architecture, UNKNOWN)
    num_layers, num_heads = fields.size("num_hidden_layers", maximum=MAX_LAYERS), fields.size("num_attention_heads")
    hidden_size, vocab_size = fields.size("hidden_size"), fields.size("vocab_size")
    rope, window = read_rope(fields, family.default_rotary_fraction), target_fields.sliding_window(fields, family)
    prefix = target_fields.prefix(tensors, bool(text))
    qkv_bias, out_bias = target_fields.attention_biases(family, bool(fields.optional_flag("attention_bias")))
    ends = [source.integers("eos_token_id") or () for source in ((fields, top) if text else (fields,))]
    facts = TargetFacts(
        name=name,
        format="safetensors",
        architecture=architecture,
        family=family.name or None,
        num_layers=num_layers,
        layer_types=target_fields.layer_types(fields, family, num_layers, window),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size", 0 if family.has_experts else None),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", None if family.is_hybrid else num_heads),
        head_dim=fields.size("head_dim", family.default_head_dim or hidden_size // max(num_heads, 1)),
        vocab_size=vocab_size,
        head_rows=target_fields.head_rows(tensors.get(f"{prefix}.embed_tokens.weight"), vocab_size),
        max_positions=stretched_positions(fields.size("max_position_embeddings"), rope),
        tie_word_embeddings=target_fields.is_tied(top, fields),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        gdn=target_fields.gdn(fields) if family.is_hybrid else None,
        moe=target_fields.moe(fields) if family.has_experts else None,
        num_mtp_layers=target_fields.num_mtp_layers(fields, tensors),
        eos_token_ids=tuple(sorted({*eos_token_ids, *(token for ids in ends for token in ids)})),
        quantization=_quantization(fields, tensors) or quantization,
        dtype=main_dtype(tensors),
        variants=target_fields.variants(fields, family),
        sliding_window=window,
        has_head_norms=family.has_head_norms,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        mlp_bias=bool(fields.optional_flag("mlp_bias")) if family.has_mlp_bias is None else family.has_mlp_bias,
        prefix=prefix,
        is_multimodal=bool(text) and "vision_config" in config,
        tensors=tensors,
    )
    target_fields.note_contradictions(fields, facts)
    if facts.family is not None:  # an unknown architecture is refused by name, whatever its fields look like
        top.problems += fields.problems
        top.finish()
    return facts


def draft_facts(name: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> DraftFacts:
    """Facts from a parsed `config.json` and tensor table; `dflash_config` wins over the top level for DFlash's fields."""
    top = Fields(f"{name}/{CONFIG_FILE}", config)
    nested = {key: value for key, value in (top.mapping("dflash_config") or {}).items() if key in _DFLASH_FIELDS}
    fields = Fields(top.source, ChainMap(nested, dict(config)))
    num_heads, hidden_size = fields.size("num_attention_heads"), fields.size("hidden_size")
    facts = DraftFacts(
        name=name,
        architecture=_architecture(top),
        num_layers=fields.size("num_hidden_layers", maximum=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=fields.size("head_dim", hidden_size // max(num_heads, 1)),
        vocab_size=fields.size("vocab_size"),
        max_positions=fields.optional_integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=read_rope(fields),
        layer_types=fields.strings("layer_types"),
        sliding_window=fields.optional_integer("sliding_window"),
        is_causal=fields.optional_flag("is_causal"),
        block_size=fields.optional_integer("block_size"),
        mask_token_id=fields.optional_integer("mask_token_id"),
        target_layer_ids=fields.integers("target_layer_ids"),
        num_target_layers=fields.optional_integer("num_target_layers"),
        conv_kernel_size=fields.optional_integer("conv_kernel_size"),
        conv_group_size=fields.optional_integer("conv_group_size"),
        selector_rank=fields.optional_integer("selector_rank"),
        selector_top_k=fields.optional_integer("selector_top_k"),
        output_multiplier=fields.optional_number("output_multiplier"),
        input_embedding_scale=fields.optional_number("input_embedding_scale"),
        final_logit_softcapping=fields.optional_number("final_logit_softcapping"),
        hidden_act=fields.text("hidden_act", "silu"),
        attention_bias=bool(fields.optional_flag("attention_bias")),
        use_gemma_norm=bool(fields.optional_flag("use_gemma_norm")),
        quantization=_quantization(fields, tensors),
        config_dtype=_config_dtype(fields),
        dtype=main_dtype(tensors),
        tensors=renamed(name, tensors, canonical_name),
    )
    fields.problems += top.problems
    fields.finish()
    return facts


def _read_config(folder: Folder) -> dict[str, Any]:
    source = find(folder, CONFIG_FILE)
    if source is None:
        raise MetadataError(folder.name, f"holds no {CONFIG_FILE}", "name a Hugging Face checkpoint folder or a .gguf file")
    return read_json(source)


def _generation_eos(folder: Folder) -> tuple[int, ...]:
    source = find(folder, "generation_config.json")
    if source is None:
        return ()
    fields = Fields(source.name, read_json(source))
    ids = fields.integers("eos_token_id") or ()
    fields.finish()
    return ids


def _architecture(fields: Fields) -> str:
    names = fields.strings("architectures") or ()
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _quantization(fields: Fields, tensors: Mapping[str, TensorInfo]) -> str | None:
    """The quantization a config names, or the packed dtype found where it names none."""
    if (config := fields.mapping("quantization_config")) is not None:
        return str(config.get("quant_method") or config.get("quant_algo") or "unnamed")
    packed = sorted({t.dtype for n, t in tensors.items() if n.endswith("weight") and t.dtype not in FLOAT_DTYPES})
    return packed[0] if packed else None


def _config_dtype(fields: Fields) -> str | None:
    return fields.text("torch_dtype", "") or fields.text("dtype", "") or None
