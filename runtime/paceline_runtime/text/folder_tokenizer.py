"""The tokenizer of a Hugging Face folder: its tokenizer.json, tokenizer_config.json and chat template. `load` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from paceline_compat.errors import MetadataError
from paceline_runtime.text.tokenizer import Tokenizer
from paceline_runtime.text.tokenizer_files import read_backend, read_tokenizer_config, stored_text

_LISTS = ("additional_special_tokens", "extra_special_tokens")
_NAMED = ("extra_special_tokens", "model_specific_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def load_folder_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a folder. Raises MetadataError without a tokenizer.json: a SentencePiece model alone is not read."""
    if not path.is_dir():
        raise MetadataError(str(path), "no such folder", "name a Hugging Face checkpoint folder or a .gguf file")
    backend = read_backend(path / "tokenizer.json")
    config = read_tokenizer_config(path)
    special = {n: text for n, value in _named(config).items() if (text := stored_text(value)) is not None}
    _mark_added(backend, config)
    return Tokenizer(backend, special_tokens=special, chat_template=_chat_template(path, config))


def _mark_added(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Let the tokens that only the config lists be found in a text, and special ones left out of it, as transformers does.

    A token that has no id in tokenizer.json stays text: the model has no row for an id of our making.
    """
    decoder = config.get("added_tokens_decoder")
    added = [value for value in decoder.values() if isinstance(value, Mapping)] if isinstance(decoder, Mapping) else []
    _add(backend, added)
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = [value for name in _LISTS if isinstance(config.get(name), list) for value in config[name]]
    special = [value if isinstance(value, Mapping) else {"content": value} for value in [*_named(config).values(), *listed]]
    _add(backend, [{**value, "special": True} for value in special if stored_text(value) not in marked])


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens by the names that templates know them by. A mapping of its own may hold those of one model alone."""
    own = {name: value for name, value in config.items() if name.endswith("_token")}
    for name in _NAMED:
        own |= config[name] if isinstance(config.get(name), Mapping) else {}
    return own


def _add(backend: tokenizers.Tokenizer, values: Iterable[Mapping[str, Any]]) -> None:
    for value in values:
        text = stored_text(value)
        if text is not None and backend.token_to_id(text) is not None:
            flags = {name: value[name] for name in _FLAGS if type(value.get(name)) is bool}
            token = tokenizers.AddedToken(text, **flags)
            (backend.add_special_tokens if token.special else backend.add_tokens)([token])


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
