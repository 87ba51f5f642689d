"""Family `qwen3_5`: the dense hybrids (Qwen3.5 and its successors), text part only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline_compat.activations import mlp_values
from paceline_runtime.layers.mlp import gated_mlp
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.hybrid import HybridDecoder, Mlp
from paceline_runtime.models.hybrid_config import hybrid_reader, read_hybrid_config


def build(config: Mapping[str, Any], parameters: Parameters) -> HybridDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = hybrid_reader("qwen3_5", config)
    hybrid, inner = read_hybrid_config(reader), reader.size("intermediate_size")
    reader.finish()

    def make_mlp(name: str, parameters: Parameters) -> Mlp:
        mlp = gated_mlp(parameters, name, hybrid.hidden_size, inner)

        def every_row(x: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
            return mlp.to_be_added(x)

        return every_row

    return HybridDecoder(hybrid, make_mlp, parameters, mlp_values=mlp_values(inner))
