"""Rotary embedding out of a config: both spellings in the field (``rope_parameters``, ``rope_scaling``)."""

from __future__ import annotations

from collections import ChainMap

from .facts import RopeFacts
from .fields import Fields

_INTERLEAVED_FLAGS = ("rope_interleaved", "rope_interleave")
_NEOX_FLAGS = ("rope_is_neox_style", "is_neox_style")


def read_rope(fields: Fields, default_fraction: float = 1.0) -> RopeFacts:
    """Read ``rope_parameters`` (transformers 5) and ``rope_scaling``, which wins, with ``rope_theta`` beside them."""
    own = {**(fields.mapping("rope_parameters") or {}), **(fields.mapping("rope_scaling") or {})}
    if own and all(isinstance(value, dict) for value in own.values()):
        return RopeFacts(kind="per-layer", parameters=own)
    rope = Fields(fields.source, ChainMap(own, dict(fields.data)))
    kind = rope.text("rope_type", "") or (rope.text("type", "") if "type" in own else "") or "default"
    theta = rope.number("rope_theta", 10_000.0)
    fraction = rope.number("partial_rotary_factor", default_fraction)
    facts = RopeFacts(kind, theta, fraction, _is_neox(rope), own)
    fields.problems += rope.problems
    return facts


def _is_neox(rope: Fields) -> bool:
    interleaved = any(rope.optional_flag(flag) for flag in _INTERLEAVED_FLAGS)
    return not interleaved and all(rope.optional_flag(flag) is not False for flag in _NEOX_FLAGS)
