"""Rotary embedding out of a config: both spellings in the field (``rope_parameters``, ``rope_scaling``).

``stated_rope`` and ``stretched_positions`` are the loader's as well.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

from .facts import RopeFacts
from .fields import MAX_INTEGER, Fields

_INTERLEAVED_FLAGS = ("rope_interleaved", "rope_interleave")
_NEOX_FLAGS = ("rope_is_neox_style", "is_neox_style")
_SPELLINGS = ("rope_scaling", "rope_parameters")
# The kind is the winner's; sections are for images, and the positions of text are the same in all of them.
_NEVER_LOST = frozenset({"rope_type", "type", "mrope_section", "mrope_interleaved"})


def stated_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope's fields: those of ``rope_scaling`` where it states any, else those of ``rope_parameters`` (transformers 5).

    transformers reads one of the two. Raises ValueError for a value that gets lost so, such as the theta of a config to which
    somebody has added a ``rope_scaling``: the model would run with the default.
    """
    scaling, parameters = (dict(config.get(name) or {}) for name in _SPELLINGS)
    if all(value is None for value in scaling.values()):
        return parameters
    others = parameters.keys() - scaling.keys() - _NEVER_LOST
    if lost := sorted(name for name in others if parameters[name] not in (None, config.get(name))):
        what = f"rope_scaling stands in for all of rope_parameters, and leaves out {', '.join(lost)}"
        raise ValueError(f"{what}: state everything in one of them")
    return scaling


def stretched_positions(max_positions: int, kind: str, rope: Mapping[str, Any]) -> int:
    """The longest context: YaRN stretches the one that the model was trained with, and configs leave their number at that."""
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings") or max_positions
    if kind != "yarn" or not isinstance(factor, int | float) or type(original) is not int:
        return max_positions
    stretched = original * float(factor)
    return int(stretched) if max_positions < stretched < MAX_INTEGER else max_positions


def read_rope(fields: Fields, default_fraction: float = 1.0) -> RopeFacts:
    """Read the rope of a config in either spelling, with ``rope_theta`` beside it."""
    own: dict[str, Any] = {}
    try:
        own = stated_rope(dict(fields.data) | {name: fields.mapping(name) for name in _SPELLINGS})
    except ValueError as error:
        fields.problems.append(str(error))
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
