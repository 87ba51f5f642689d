"""Family `qwen3_5_moe`: the hybrids with a mixture of experts; all but the MLP is `qwen3_5`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline_compat.activations import mixture_values
from paceline_compat.facts import MoeFacts
from paceline_runtime.layers.moe import MixtureOfExperts
from paceline_runtime.layers.parameters import Parameters, Place
from paceline_runtime.models.config import ConfigReader
from paceline_runtime.models.hybrid import HybridDecoder
from paceline_runtime.models.hybrid_config import hybrid_reader, read_hybrid_config
from paceline_runtime.models.qwen3_5 import gated_mlp


def build(config: Mapping[str, Any], parameters: Parameters) -> HybridDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = hybrid_reader("qwen3_5_moe", config)
    hybrid, sizes = read_hybrid_config(reader), _read_sizes(reader)
    reader.finish()

    def make_mlp(name: str, parameters: Parameters) -> MixtureOfExperts:
        return _mixture(name, hybrid.hidden_size, sizes, parameters)

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


def _mixture(name: str, hidden_size: int, sizes: MoeFacts, parameters: Parameters) -> MixtureOfExperts:
    gate_up, down = _experts(f"{name}.experts", hidden_size, sizes, parameters)
    return MixtureOfExperts(
        parameters.linear({f"{name}.gate": sizes.num_experts}, hidden_size),
        gate_up,
        down,
        gated_mlp(f"{name}.shared_expert", hidden_size, sizes.shared_intermediate_size, parameters),
        parameters.linear({f"{name}.shared_expert_gate": 1}, hidden_size),
        num_chosen=sizes.num_experts_per_token,
    )


def _experts(name: str, hidden_size: int, sizes: MoeFacts, parameters: Parameters) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up [E, 2 I, H] and down [E, H, I]: stored stacked like this, or each expert's three matrices on their own."""
    count, inner = sizes.num_experts, sizes.intermediate_size
    gate_up = parameters.tensor(f"{name}.gate_up_proj", count, 2 * inner, hidden_size)
    down = parameters.tensor(f"{name}.down_proj", count, hidden_size, inner)
    single: dict[str, Place] = {}
    for expert in range(count):
        parts = {"gate_proj": gate_up[expert, :inner], "up_proj": gate_up[expert, inner:], "down_proj": down[expert]}
        single |= {f"{name}.{expert}.{part}.weight": Place(view) for part, view in parts.items()}
    parameters.store_otherwise((f"{name}.gate_up_proj", f"{name}.down_proj"), single)
    return gate_up, down
