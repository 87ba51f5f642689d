"""Family `qwen3_5_moe`: the hybrids with a mixture of experts; all but the MLP is `qwen3_5`'s."""

from __future__ import annotations

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.layers.experts import Experts, mixture
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import Decoder
from paceline_runtime.models.hybrid import hybrid_recipe


def build(facts: TargetFacts, parameters: Parameters) -> Decoder:
    """The model over memory that the loader fills."""
    assert facts.moe is not None, "the family has experts"
    sizes = facts.moe

    def mlp(name: str, parameters: Parameters) -> Experts:
        return mixture(parameters, name, facts.hidden_size, sizes)

    return Decoder(facts, hybrid_recipe(facts, mlp), parameters)
