"""The scaling of a GGUF's rope, in the names of a config. Used by ``gguf_checkpoint`` and by the runtime's loader.

Meaning of the keys: ``llama-model.cpp`` and ``llama-context.cpp`` of llama.cpp. It judges no architecture.
"""

from __future__ import annotations

from typing import Any

from .gguf_header import GgufHeader

DIVISORS = "rope_freqs.weight"
"""Llama 3's scaling is no key but this tensor: a divisor for each pair of a head's values."""

_KINDS = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


def read_scaling(header: GgufHeader, architecture: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """``rope_type`` and its fields; and the metadata keys, with their values, whose effect these fields cannot tell.

    A factor without a type scales linearly, and a type without a factor does not scale. ``attn_factor`` multiplies what YaRN
    does to attention by itself, where a config's ``attention_factor`` stands in for it.
    """
    prefix = f"{architecture}.rope.scaling."
    factor = header.get(f"{prefix}factor", float) or 1.0
    kind = header.get(f"{prefix}type", str) or ("none" if factor == 1.0 else "linear")
    attention_factor = header.get(f"{prefix}attn_factor", float, 1.0)
    is_scaled = kind != "none" and (factor != 1.0 or kind not in ("linear", "yarn"))
    strange = {
        "type": (kind, kind not in _KINDS or (is_scaled and DIVISORS in header.tensors)),
        "factor": (factor, not 0 < factor < float("inf")),
        "attn_factor": (attention_factor, attention_factor != 1.0),
    }
    fields: dict[str, Any] = {"rope_type": _KINDS.get(kind, kind)}
    if kind in ("linear", "yarn"):
        fields["factor"] = factor
    if kind == "yarn" and (original := header.get(f"{prefix}original_context_length", int)):
        fields["original_max_position_embeddings"] = original
    return fields, {prefix + name: value for name, (value, is_strange) in strange.items() if is_strange}
