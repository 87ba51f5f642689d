"""Rotary embeddings: from a rope's facts to inverse frequencies.

The models make it and call it once per forward. The formulas give what transformers' `modeling_rope_utils` gives, in float32;
facts and rules say which kinds there are and which fields a kind has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from paceline_compat.facts.records import RopeFacts
from paceline_kernels.backend import Backend
from paceline_kernels.rotary import RotaryTable, rotary_table


class Rotary:
    """Makes the table that all layers of a forward share."""

    def __init__(self, rope: RopeFacts, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        inverse, self.scaling = inverse_frequencies(rope, head_dim)
        self.inverse_frequencies, self.dtype = inverse.to(device), dtype

    def table(self, positions: torch.Tensor, *, backend: Backend = Backend.AUTO) -> RotaryTable:
        """Cosines and sines of rope positions int64 [N]."""
        return rotary_table(positions, self.inverse_frequencies, self.scaling, self.dtype, backend=backend)


def inverse_frequencies(rope: RopeFacts, head_dim: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies float32, one for each pair of a head's rotated values, and the factor on cosines and sines."""
    width = int(head_dim * rope.rotary_fraction)
    plain = 1.0 / rope.theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    if rope.divisors:
        return plain / torch.tensor(rope.divisors, dtype=torch.float32), 1.0
    return _SCALES[rope.kind](plain, rope)


def _default(plain: torch.Tensor, rope: RopeFacts) -> tuple[torch.Tensor, float]:
    return plain, 1.0


def _linear(plain: torch.Tensor, rope: RopeFacts) -> tuple[torch.Tensor, float]:
    return plain / rope.fields["factor"], 1.0


def _llama3(plain: torch.Tensor, rope: RopeFacts) -> tuple[torch.Tensor, float]:
    """Long waves divided by `factor`, short ones kept, a linear blend between."""
    factor, low, high = (rope.fields[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = rope.fields["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / factor + kept * plain, 1.0


def _yarn(plain: torch.Tensor, rope: RopeFacts) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolate the slow dimensions, keep the fast ones."""
    low, high = _yarn_range(rope, 2 * len(plain))
    ramp = ((torch.arange(len(plain), dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return plain / rope.fields["factor"] * ramp + plain * (1 - ramp), _yarn_scaling(rope.fields)


def _yarn_range(rope: RopeFacts, width: int) -> tuple[float, float]:
    """Dimensions between which YaRN blends: those that turn `beta_fast` and `beta_slow` times in the original context."""
    context = rope.fields["original_max_position_embeddings"]
    fast, slow = rope.fields.get("beta_fast") or 32, rope.fields.get("beta_slow") or 1
    low, high = (width * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta)) for turns in (fast, slow))
    if rope.fields.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    return low, high if high != low else high + 0.001


def _yarn_scaling(fields: Mapping[str, Any]) -> float:
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(fields["factor"]) + 1.0 if fields["factor"] > 1 else 1.0

    if (given := fields.get("attention_factor")) is not None:
        return float(given)
    part, whole = fields.get("mscale"), fields.get("mscale_all_dim")
    return scale(part) / scale(whole) if part and whole else scale(1.0)


Scale = Callable[[torch.Tensor, RopeFacts], tuple[torch.Tensor, float]]
_SCALES: Mapping[str, Scale] = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
