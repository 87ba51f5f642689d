"""Family `mistral`: a llama that never has biases; its sliding window is served as far as no context outgrows it."""

from __future__ import annotations

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import Decoder
from paceline_runtime.models.dense import dense_recipe


def build(facts: TargetFacts, parameters: Parameters) -> Decoder:
    """The model over memory that the loader fills."""
    return Decoder(facts, dense_recipe(facts), parameters)
