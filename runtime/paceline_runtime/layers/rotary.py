"""Rotary embeddings as configs describe them: from rope parameters to inverse frequencies.

Called by the families when they read a config and by models once per forward. The formulas give what transformers'
`modeling_rope_utils` gives, in float32; a rope type or field that is not known here is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from paceline_compat.rope_fields import stated_rope
from paceline_kernels.rotary import RotaryTable, rotary_table


@dataclass(frozen=True)
class Rope:
    """Rope parameters of one model. `width` is the rotated part of a head; `fields` are those of its kind."""

    kind: str
    theta: float
    width: int
    fields: Mapping[str, Any]


class Rotary:
    """Makes the table that all layers of a forward share."""

    def __init__(self, rope: Rope, dtype: torch.dtype, device: torch.device) -> None:
        inverse, self.scaling = inverse_frequencies(rope)
        self.inverse_frequencies, self.dtype = inverse.to(device), dtype

    def table(self, positions: torch.Tensor) -> RotaryTable:
        """Cosines and sines of rope positions int64 [N]."""
        return rotary_table(positions, self.inverse_frequencies, self.scaling, self.dtype)


def read_rope(config: Mapping[str, Any], head_dim: int) -> Rope:
    """The rope of a config, in its present form (`rope_parameters`) or its older one (`rope_theta`, `rope_scaling`).

    Raises ValueError naming the type or field that is not known, or missing.
    """
    fields = stated_rope(config)
    legacy_kind = fields.pop("type", None)
    kind = fields.pop("rope_type", None) or legacy_kind or "default"
    theta = fields.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    partial = fields.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    if kind not in _KINDS:
        raise ValueError(f"rope type {kind!r} is not supported; there are {', '.join(sorted(_KINDS))}")
    original = config.get("original_max_position_embeddings") or fields.get("original_max_position_embeddings")
    if kind in ("llama3", "yarn"):
        fields["original_max_position_embeddings"] = original or config["max_position_embeddings"]
    if kind == "yarn" and fields.get("factor") is None:
        fields["factor"] = config["max_position_embeddings"] / fields["original_max_position_embeddings"]
    _check_fields(kind, fields)
    return Rope(kind, float(theta), int(head_dim * partial), fields)


def inverse_frequencies(rope: Rope) -> tuple[torch.Tensor, float]:
    """Inverse frequencies float32 [width / 2], and the factor on cosines and sines."""
    plain = 1.0 / rope.theta ** (torch.arange(0, rope.width, 2, dtype=torch.float32) / rope.width)
    return _KINDS[rope.kind].scale(plain, rope)


def _check_fields(kind: str, fields: Mapping[str, Any]) -> None:
    required, optional = _KINDS[kind].required, _KINDS[kind].optional
    if missing := sorted(required - fields.keys()):
        raise ValueError(f"rope type {kind!r} needs {', '.join(missing)}")
    if unknown := sorted(fields.keys() - required - optional):
        raise ValueError(f"rope type {kind!r} does not know {', '.join(unknown)}")


def _default(plain: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, float]:
    return plain, 1.0


def _linear(plain: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, float]:
    return plain / rope.fields["factor"], 1.0


def _divided(plain: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, float]:
    return plain / torch.tensor(rope.fields["divisors"], dtype=torch.float32), 1.0


def _llama3(plain: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, float]:
    """Long waves divided by `factor`, short ones kept, a linear blend between."""
    factor, low, high = (rope.fields[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = rope.fields["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / factor + kept * plain, 1.0


def _yarn(plain: torch.Tensor, rope: Rope) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolate the slow dimensions, keep the fast ones."""
    low, high = _yarn_range(rope)
    ramp = ((torch.arange(rope.width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return plain / rope.fields["factor"] * ramp + plain * (1 - ramp), _yarn_scaling(rope.fields)


def _yarn_range(rope: Rope) -> tuple[float, float]:
    """Dimensions between which YaRN blends: those that turn `beta_fast` and `beta_slow` times in the original context."""
    context = rope.fields["original_max_position_embeddings"]
    fast, slow = rope.fields.get("beta_fast") or 32, rope.fields.get("beta_slow") or 1
    low, high = (rope.width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta)) for turns in (fast, slow))
    if rope.fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.width - 1)
    return low, high if high != low else high + 0.001


def _yarn_scaling(fields: Mapping[str, Any]) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(fields["factor"]) + 1.0 if fields["factor"] > 1 else 1.0

    if (given := fields.get("attention_factor")) is not None:
        return float(given)
    part, whole = fields.get("mscale"), fields.get("mscale_all_dim")
    return scale(part) / scale(whole) if part and whole else scale(1.0)


@dataclass(frozen=True)
class _Kind:
    scale: Callable[[torch.Tensor, Rope], tuple[torch.Tensor, float]]
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()


_ORIGINAL = "original_max_position_embeddings"
_KINDS = {
    "default": _Kind(_default, optional=frozenset({_ORIGINAL})),
    "linear": _Kind(_linear, frozenset({"factor"}), frozenset({_ORIGINAL})),
    "llama3": _Kind(_llama3, frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL})),
    "yarn": _Kind(
        _yarn,
        frozenset({"factor", _ORIGINAL}),
        frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
    # A GGUF stores llama3's frequencies as divisors, one per pair (tensor rope_freqs.weight).
    "divided": _Kind(_divided, frozenset({"divisors"})),
}
