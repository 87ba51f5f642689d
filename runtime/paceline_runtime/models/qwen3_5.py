"""Family `qwen3_5`: the dense hybrids (Qwen3.5 and its successors), text part only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline_compat.activations import mlp_values
from paceline_runtime.layers.mlp import GatedMlp
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.hybrid import HybridDecoder, Mlp
from paceline_runtime.models.hybrid_config import hybrid_reader, read_hybrid_config


def build(config: Mapping[str, Any], parameters: Parameters) -> HybridDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = hybrid_reader("qwen3_5", config)
    hybrid, inner = read_hybrid_config(reader), reader.size("intermediate_size")
    reader.finish()

    def make_mlp(name: str, parameters: Parameters) -> Mlp:
        mlp = gated_mlp(name, hybrid.hidden_size, inner, parameters)

        def every_row(x: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
            return mlp(x)

        return every_row

    return HybridDecoder(hybrid, make_mlp, parameters, mlp_values=mlp_values(inner))


def gated_mlp(name: str, hidden_size: int, intermediate_size: int, parameters: Parameters) -> GatedMlp:
    """A gated MLP stored as `name.gate_proj`, `name.up_proj` and `name.down_proj`."""
    gate_up = {f"{name}.gate_proj": intermediate_size, f"{name}.up_proj": intermediate_size}
    down = parameters.linear({f"{name}.down_proj": hidden_size}, intermediate_size)
    return GatedMlp(parameters.linear(gate_up, hidden_size), down)
