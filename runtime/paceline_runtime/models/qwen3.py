"""Family `qwen3`: the dense Qwen3 models, a llama with norms on the heads of q and k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.config import ConfigReader
from paceline_runtime.models.decoder import DenseDecoder, read_decoder_config


def build(config: Mapping[str, Any], parameters: Parameters) -> DenseDecoder:
    """The model over memory that the loader fills. Raises ConfigError with every field that is wrong or not supported."""
    reader = ConfigReader("qwen3", config)
    reader.refuse_unless_neutral()
    _refuse_sliding_window(reader)
    decoder = read_decoder_config(reader, head_norms=True)
    reader.finish()
    return DenseDecoder(decoder, parameters)


def _refuse_sliding_window(reader: ConfigReader) -> None:
    """Qwen3 configs carry a window that does nothing unless `use_sliding_window` is set or a layer asks for it."""
    kinds = set(reader.config.get("layer_types") or ())
    if other := sorted(kinds - {"full_attention"}):
        reader.problems.append(f"layer_types {', '.join(other)} are not supported, all must be full_attention")
    if reader.flag("use_sliding_window") and not kinds and _has_windowed_layers(reader):
        reader.problems.append("use_sliding_window = True is not supported, it must be false")


def _has_windowed_layers(reader: ConfigReader) -> bool:
    return reader.size("max_window_layers", 28) < reader.size("num_hidden_layers")
