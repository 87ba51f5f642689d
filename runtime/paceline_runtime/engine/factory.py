"""The engine as the server's engine process builds it: with a tokenizer of its own, for stop strings.

`process.DEFAULT_FACTORY` names it, and only the engine process imports it, since it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import build_engine
from paceline_runtime.engine.core import Engine
from paceline_runtime.text.load import load_tokenizer
from paceline_runtime.text.tokenizer import Tokenizer


def build_with_tokenizer(config: EngineConfig, on_progress: Callable[[str, float], None]) -> Engine:
    """An engine; its tokenizer is loaded when the first request with a stop string comes, since most have none."""
    loaded: list[Tokenizer] = []

    def decode(ids: Sequence[int]) -> str:
        if not loaded:
            loaded.append(load_tokenizer(config.model_path))
        return loaded[0].decode(ids)

    return build_engine(config, on_progress, decode)
