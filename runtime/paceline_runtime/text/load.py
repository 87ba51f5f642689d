"""The tokenizer of a checkpoint, whatever its format. The server, `LLM` and the engine process call it."""

from __future__ import annotations

from pathlib import Path

from paceline_compat import sole_gguf
from paceline_runtime.text.folder_tokenizer import load_folder_tokenizer
from paceline_runtime.text.gguf_tokenizer import load_gguf_tokenizer
from paceline_runtime.text.tokenizer import Tokenizer


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder or a .gguf file. Raises MetadataError naming what is missing or not read."""
    path = sole_gguf(Path(path))
    if path.suffix == ".gguf":
        return load_gguf_tokenizer(path)
    return load_folder_tokenizer(path)
