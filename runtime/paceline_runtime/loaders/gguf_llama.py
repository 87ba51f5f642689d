"""GGUF architecture `llama` in the terms of the family of that name. Called by `gguf_file`.

Keys and names: the GGUF format page and the converter of llama.cpp (class LlamaModel in convert_hf_to_gguf.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.families import GGUF_KEYS
from paceline_compat.gguf_header import GgufArray, GgufHeader
from paceline_compat.gguf_rope import DIVISORS, read_scaling
from paceline_runtime.loaders.gguf_file import GgufTensor, read_tensor
from paceline_runtime.text.end_tokens import gguf_end_ids

_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_MODULES = {
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
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class GgufLlama:
    """A llama GGUF in Hugging Face terms."""

    config: Mapping[str, Any]
    architecture: str = "LlamaForCausalLM"

    def tensor(self, stored_name: str) -> GgufTensor | None:
        """Rename, and undo the converter's reordering of the rows of q and k."""
        if stored_name == DIVISORS:
            return None
        match = _LAYER_TENSOR.fullmatch(stored_name)
        if match is None or match[2] not in _MODULES:
            return GgufTensor(_TOP.get(stored_name, stored_name))
        name = f"model.layers.{match[1]}.{_MODULES[match[2]]}.{match[3]}"
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(match[2])
        return GgufTensor(name, functools.partial(_halves, num_heads=self.config[heads]) if heads else None)


def describe(header: GgufHeader) -> GgufLlama:
    """The config that the file's metadata means; keys that are not understood are refused by name."""
    _refuse_unknown_keys(header)
    sizes = {ours: _size(header, f"llama.{key}") for key, ours in _SIZES.items()}
    sizes["vocab_size"] = sizes["vocab_size"] or header.count("tokenizer.ggml.tokens")
    config: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    config |= {
        "rms_norm_eps": header.get("llama.attention.layer_norm_rms_epsilon", float),
        "rope_parameters": _rope(header, _head_dim(config)),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "eos_token_id": sorted(gguf_end_ids(header)),
    }
    _refuse_other_heads(header, config)
    return GgufLlama(config)


def _size(header: GgufHeader, key: str) -> int | None:
    """One number, or one for each layer where all are the same."""
    if not isinstance(header.metadata.get(key), GgufArray):
        return header.get(key, int)
    values = {int(value) for value in header.numbers(key)}
    if len(values) != 1:
        raise MetadataError(header.source.name, f"metadata key {key!r} differs by layer")
    return values.pop()


def _refuse_unknown_keys(header: GgufHeader) -> None:
    known = {f"llama.{key}" for key in GGUF_KEYS["llama"]}
    unknown = sorted(key for key in header.metadata if key.startswith("llama.") and key not in known)
    if header.get("llama.expert_count", int, 0):
        unknown.append("llama.expert_count")
    if unknown:
        raise MetadataError(header.source.name, f"metadata keys {', '.join(unknown)} are not supported")


def _refuse_other_heads(header: GgufHeader, config: Mapping[str, Any]) -> None:
    """Values as wide as keys, all of a head rotated: the family knows no other."""
    head_dim = _head_dim(config)
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.get(f"llama.{key}", int, head_dim) != head_dim:
            raise MetadataError(header.source.name, f"metadata key 'llama.{key}' must be the head's size {head_dim}")


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config.get("hidden_size", 0) // (config.get("num_attention_heads") or 1))


def _rope(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    fields, strange = read_scaling(header, "llama")
    if strange:
        stated = ", ".join(f"{name} = {value!r}" for name, value in strange.items())
        raise MetadataError(header.source.name, f"metadata keys are not supported at these values: {stated}")
    theta = header.get("llama.rope.freq_base", float, 10000.0)
    if (divisors := header.tensors.get(DIVISORS)) is None:
        return {"rope_theta": theta, **fields}
    values = read_tensor(divisors, torch.device("cpu"))
    if values.shape != (head_dim // 2,) or not bool(((values > 0) & values.isfinite()).all()):
        what = f"{DIVISORS} is {list(values.shape)}, and must be positive numbers, one for each pair of a head's values"
        raise MetadataError(header.source.name, what)
    return {"rope_type": "divided", "rope_theta": theta, "divisors": values.tolist()}


def _halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of each head from pairs (0, 1), (2, 3) ... back to halves: ggml rotates neighbours, we rotate halves."""
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
