"""The files of a Hugging Face folder's tokenizer as they are stored. `folder_tokenizer` and `end_tokens` read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline_compat.errors import MetadataError
from paceline_compat.formats.fields import read_json
from paceline_compat.places.source import LocalSource

if TYPE_CHECKING:
    import tokenizers


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """What tokenizer.json describes, but for the cutting and padding that it was last used with: prompts want neither.

    Raises MetadataError where it is missing or wrong.
    """
    import tokenizers  # imported late: most models are loaded without it

    if not path.is_file():
        raise MetadataError(str(path), "no such file", "save the tokenizer with transformers to make one")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever is wrong in the file
        raise MetadataError(str(path), f"is not a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """tokenizer_config.json; without `added_tokens_decoder` it is an old one, and special_tokens_map.json wins over it."""
    config = optional_json(path / "tokenizer_config.json")
    return config if "added_tokens_decoder" in config else config | optional_json(path / "special_tokens_map.json")


def optional_json(path: Path) -> dict[str, Any]:
    """A small JSON object, empty where there is no such file."""
    return read_json(LocalSource(path)) if path.is_file() else {}


def stored_text(value: Any) -> str | None:
    """A token is stored as its text, or as an object that has the text in `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
