"""The rope of a GGUF, in the names of a config. `gguf_checkpoint` uses it.

Meaning of the keys: `llama-model.cpp` and `llama-context.cpp` of llama.cpp. It judges no architecture.
"""

from __future__ import annotations

import struct
from typing import Any

from paceline_compat.errors import MetadataError
from paceline_compat.facts.families import GgufForm
from paceline_compat.facts.records import RopeFacts
from paceline_compat.facts.rope_fields import complete_rope, is_positive
from paceline_compat.formats.gguf_header import GgufHeader
from paceline_compat.formats.tensors import TensorInfo

DIVISORS = "rope_freqs.weight"
"""Llama 3's scaling is no key but this tensor: a divisor for each pair of a head's values."""

_MAX_DIVISORS = 1 << 12
_KINDS = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


def read_gguf_rope(header: GgufHeader, form: GgufForm, head_dim: int, max_positions: int) -> tuple[RopeFacts, dict[str, Any]]:
    """The rope; and the metadata keys or tensors, with their values, whose effect it cannot tell."""
    prefix = f"{form.architecture}.rope."
    theta = header.get(f"{prefix}freq_base", float, 10_000.0)
    width = header.get(f"{prefix}dimension_count", int, head_dim)
    assert theta is not None, "there is a default"
    assert width is not None, "there is a default"
    if not is_positive(theta):
        raise MetadataError(header.source.name, f"metadata key '{prefix}freq_base' is {theta}")
    kind, fields, strange = _scaling(header, f"{prefix}scaling.")
    divisors: tuple[float, ...] = ()
    if (stored := header.tensors.get(DIVISORS)) is not None:
        kind, (divisors, wrong) = "llama3", _divisors(header, stored, head_dim)
        strange |= wrong
    of_kind = complete_rope(kind, fields, max_positions) if not divisors else {}
    return RopeFacts(kind, theta, width / max(head_dim, 1), form.is_neox, of_kind, divisors), strange if form.modules else {}


def _scaling(header: GgufHeader, prefix: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Kind and fields; and what they cannot tell.

    A factor without a type scales linearly, and a type without a factor does not scale. `attn_factor` multiplies what YaRN
    does to attention by itself, where a config's `attention_factor` stands in for it.
    """
    factor = header.get(f"{prefix}factor", float) or 1.0
    kind = header.get(f"{prefix}type", str) or ("none" if factor == 1.0 else "linear")
    attention_factor = header.get(f"{prefix}attn_factor", float, 1.0)
    is_scaled = kind != "none" and (factor != 1.0 or kind not in ("linear", "yarn"))
    strange = {
        "type": (kind, kind not in _KINDS or (is_scaled and DIVISORS in header.tensors)),
        "factor": (factor, not is_positive(factor)),
        "attn_factor": (attention_factor, attention_factor != 1.0),
    }
    fields: dict[str, Any] = {"factor": factor} if kind in ("linear", "yarn") else {}
    if kind == "yarn" and (original := header.get(f"{prefix}original_context_length", int)):
        fields["original_max_position_embeddings"] = original
    return _KINDS.get(kind, kind), fields, {prefix + name: value for name, (value, is_strange) in strange.items() if is_strange}


def _divisors(header: GgufHeader, stored: TensorInfo, head_dim: int) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The divisors, a few hundred bytes behind the header; none where shape or type are not what they should be."""
    if stored.dtype != "F32" or stored.shape != (head_dim // 2,) or stored.num_elements > _MAX_DIVISORS:
        return (), {DIVISORS: f"{stored.dtype} {list(stored.shape)}"}
    values = struct.unpack(f"<{stored.num_elements}f", header.source.read(stored.offset, stored.num_bytes))
    wrong = [value for value in values if not is_positive(value)]
    return (values, {}) if not wrong else ((), {DIVISORS: wrong[0]})
