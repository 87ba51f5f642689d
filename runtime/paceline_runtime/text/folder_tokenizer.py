"""The tokenizer of a Hugging Face folder: tokenizer.json, tokenizer_config.json and the chat template beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from paceline_compat.errors import MetadataError
from paceline_compat.fields import read_json
from paceline_compat.source import LocalSource
from paceline_runtime.text.end_tokens import folder_end_ids
from paceline_runtime.text.tokenizer import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_folder_tokenizer(path: Path) -> Tokenizer:
    """Raises MetadataError where there is no tokenizer.json; SentencePiece models alone are not read."""
    if not path.is_dir():
        raise MetadataError(str(path), "no such folder", "name a Hugging Face checkpoint folder or a .gguf file")
    backend = _read_backend(path / "tokenizer.json")
    config, model_config = _optional_json(path / "tokenizer_config.json"), _optional_json(path / "config.json")
    special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name))) is not None}
    ends = [token for token in folder_end_ids(path, model_config) if type(token) is int]
    own_end = backend.token_to_id(special.get("eos_token", ""))
    if own_end is not None and own_end not in ends:
        ends.append(own_end)
    return Tokenizer(backend, eos_ids=ends, special_tokens=special, chat_template=_chat_template(path, config))


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise MetadataError(str(path), "no such file", "save the tokenizer with transformers to make one")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever is wrong in the file
        raise MetadataError(str(path), f"is not a tokenizer: {error}") from error


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(LocalSource(path)) if path.is_file() else {}


def _token_text(value: Any) -> str | None:
    """A token is stored as its text, or as an object that has the text in `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja wins over the config, whose named templates mean the one called `default`."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MetadataError(str(file), f"is not UTF-8: {error.reason} at byte {error.start}") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, Mapping) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None
