"""Rotary embedding out of a config, in both spellings (`rope_parameters`, `rope_scaling`), and which fields each kind knows."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any, TypeGuard

from paceline_compat.facts.records import RopeFacts
from paceline_compat.formats.fields import MAX_INTEGER, Fields

_ORIGINAL = "original_max_position_embeddings"
ROPE_FIELDS = {
    "default": (frozenset[str](), frozenset({_ORIGINAL})),
    "linear": (frozenset({"factor"}), frozenset({_ORIGINAL})),
    "llama3": (frozenset({"factor", "low_freq_factor", "high_freq_factor"}), frozenset({_ORIGINAL})),
    "yarn": (
        frozenset[str](),
        frozenset({"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
}
"""Served kind -> fields that must be stated, and those that may be; the others follow from the contexts (`complete_rope`)."""

_INTERLEAVED_FLAGS = ("rope_interleaved", "rope_interleave")
_NEOX_FLAGS = ("rope_is_neox_style", "is_neox_style")
_SPELLINGS = ("rope_scaling", "rope_parameters")
_COMMON = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"})
# The kind is the winner's; sections are for images, and the positions of text are the same in all of them.
_NEVER_LOST = frozenset({"rope_type", "type", "mrope_section", "mrope_interleaved"})


def stated_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope's fields: those of `rope_scaling` where it states any, else those of `rope_parameters` (transformers 5).

    transformers reads one of the two. Raises ValueError for a value that gets lost so, such as the theta of a config to which
    somebody has added a `rope_scaling`: the model would run with the default.
    """
    scaling, parameters = (dict(config.get(name) or {}) for name in _SPELLINGS)
    if all(value is None for value in scaling.values()):
        return parameters
    others = parameters.keys() - scaling.keys() - _NEVER_LOST
    if lost := sorted(name for name in others if parameters[name] not in (None, config.get(name))):
        what = f"rope_scaling stands in for all of rope_parameters, and leaves out {', '.join(lost)}"
        raise ValueError(f"{what}: state everything in one of them")
    return scaling


def complete_rope(kind: str, stated: Mapping[str, Any], max_positions: object, original: object = None) -> dict[str, Any]:
    """The fields of a kind with those that follow from the contexts, as transformers fills them in.

    `original` is a field beside the rope's own, which then counts.
    """
    fields = dict(stated)
    if kind in ("llama3", "yarn"):
        fields[_ORIGINAL] = original or fields.get(_ORIGINAL) or max_positions
    if kind == "yarn" and fields.get("factor") is None and _is_length(max_positions) and _is_length(fields[_ORIGINAL]):
        fields["factor"] = max_positions / fields[_ORIGINAL]
    return fields


def _is_length(value: object) -> TypeGuard[int | float]:
    return is_positive(value) and value < MAX_INTEGER


def is_positive(value: object) -> TypeGuard[int | float]:
    """Whether a field is a positive finite number."""
    return isinstance(value, int | float) and type(value) is not bool and 0 < value < float("inf")


def stretched_positions(max_positions: int, rope: RopeFacts) -> int:
    """The longest context: YaRN stretches the one that the model was trained with, and configs leave their number at that."""
    factor, original = rope.fields.get("factor"), rope.fields.get(_ORIGINAL)
    if rope.kind != "yarn" or not isinstance(factor, int | float) or type(original) is not int:
        return max_positions
    stretched = original * float(factor)
    return int(stretched) if max_positions < stretched < MAX_INTEGER else max_positions


def read_rope(fields: Fields, default_fraction: float = 1.0) -> RopeFacts:
    """Read the rope of a config in either spelling, with `rope_theta` beside it."""
    own: dict[str, Any] = {}
    try:
        own = stated_rope(dict(fields.data) | {name: fields.mapping(name) for name in _SPELLINGS})
    except ValueError as error:
        fields.problems.append(str(error))
    if own and all(isinstance(value, dict) for value in own.values()):
        return RopeFacts(kind="per-layer", fields=own)
    rope = Fields(fields.source, ChainMap(own, dict(fields.data)))
    kind = rope.text("rope_type", "") or (rope.text("type", "") if "type" in own else "") or "default"
    theta = rope.number("rope_theta", 10_000.0)
    fraction = rope.number("partial_rotary_factor", default_fraction)
    stated = {name: value for name, value in own.items() if name not in _COMMON}
    of_kind = complete_rope(kind, stated, fields.data.get("max_position_embeddings"), fields.data.get(_ORIGINAL))
    facts = RopeFacts(kind, theta, fraction, _is_neox(rope), of_kind)
    fields.problems += rope.problems
    return facts


def _is_neox(rope: Fields) -> bool:
    interleaved = any(rope.optional_flag(flag) for flag in _INTERLEAVED_FLAGS)
    return not interleaved and all(rope.optional_flag(flag) is not False for flag in _NEOX_FLAGS)
