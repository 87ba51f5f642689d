"""Which module builds which architecture. Called by the loader; a family is imported when it is first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.base import TargetModel
from paceline_runtime.models.config import ConfigError

Build = Callable[[Mapping[str, Any], Parameters], TargetModel]

ARCHITECTURES: Mapping[str, str] = {
    "LlamaForCausalLM": "paceline_runtime.models.llama",
    "Qwen3ForCausalLM": "paceline_runtime.models.qwen3",
    "Qwen3_5ForCausalLM": "paceline_runtime.models.qwen3_5",
    "Qwen3_5ForConditionalGeneration": "paceline_runtime.models.qwen3_5",
    "Qwen3_5MoeForCausalLM": "paceline_runtime.models.qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration": "paceline_runtime.models.qwen3_5_moe",
}
"""Architecture as in a config's `architectures` -> module with `build(config, parameters) -> TargetModel`."""


def family_builder(architecture: str) -> Build:
    """The `build` of the family; ConfigError with the supported ones for an architecture that is not known."""
    if architecture not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError("unknown", [f"architecture {architecture!r} is not supported; there are {supported}"])
    return cast(Build, importlib.import_module(ARCHITECTURES[architecture]).build)
