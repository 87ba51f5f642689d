"""Family `qwen3_5`: the dense hybrids (Qwen3.5 and its successors), text part only."""

from __future__ import annotations

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import Decoder, gated_mlps
from paceline_runtime.models.hybrid import hybrid_recipe


def build(facts: TargetFacts, parameters: Parameters) -> Decoder:
    """The model over memory that the loader fills."""
    return Decoder(facts, hybrid_recipe(facts, gated_mlps(facts)), parameters)
