"""Family `qwen3_5_moe`: the hybrids with a mixture of experts; all but the MLP is `qwen3_5`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_compat.activations import mixture_values
from paceline_compat.facts import MoeFacts
from paceline_runtime.layers.experts import Experts, mixture
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.config import ConfigReader
from paceline_runtime.models.hybrid import HybridDecoder
from paceline_runtime.models.hybrid_config import hybrid_reader, read_hybrid_config


def build(config: Mapping[str, Any], parameters: Parameters) -> HybridDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = hybrid_reader("qwen3_5_moe", config)
    hybrid, sizes = read_hybrid_config(reader), _read_sizes(reader)
    reader.finish()

    def make_mlp(name: str, parameters: Parameters) -> Experts:
        return mixture(parameters, name, hybrid.hidden_size, sizes)

    return HybridDecoder(hybrid, make_mlp, parameters, mlp_values=mixture_values(sizes, hybrid.hidden_size))


def _read_sizes(reader: ConfigReader) -> MoeFacts:
    sizes = MoeFacts(
        num_experts=reader.size("num_experts"),
        num_experts_per_token=reader.size("num_experts_per_tok"),
        intermediate_size=reader.size("moe_intermediate_size"),
        shared_intermediate_size=reader.size("shared_expert_intermediate_size"),
    )
    if sizes.num_experts_per_token > sizes.num_experts:
        reader.problems.append(f"num_experts_per_tok {sizes.num_experts_per_token} exceeds num_experts {sizes.num_experts}")
    return sizes
