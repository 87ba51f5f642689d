"""Family `llama`: Llama 2 and 3, SmolLM2 and others that say `LlamaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.config import ConfigReader
from paceline_runtime.models.decoder import DenseDecoder, read_decoder_config


def build(config: Mapping[str, Any], parameters: Parameters) -> DenseDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = ConfigReader("llama", config)
    reader.refuse_unless_neutral()
    decoder = read_decoder_config(reader)
    reader.finish()
    return DenseDecoder(decoder, parameters)
