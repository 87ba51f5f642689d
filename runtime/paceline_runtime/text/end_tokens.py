"""Which tokens end a generation, by the configs and the tokenizer of a folder or the metadata and vocabulary of a GGUF.

Called by the tokenizer and by both loaders. Source of the rules for GGUF: `llama-vocab.cpp` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline_compat.gguf_header import GgufArray, GgufHeader
from paceline_runtime.text.tokenizer_files import optional_json, read_backend, read_tokenizer_config, stored_text

if TYPE_CHECKING:
    import tokenizers

_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
    *("<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>"),
)
_FILL_IN_ENDS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Fill-in-the-middle tokens that end a generation: a metadata key each, else the first token so spelled."""
END_TEXTS = frozenset((*_ENDS, *(text for texts in _FILL_IN_ENDS.values() for text in texts)))


def folder_end_ids(path: Path, config: Mapping[str, Any], backend: tokenizers.Tokenizer | None = None) -> list[Any]:
    """`eos_token_id` of a folder's config and generation config, then the tokenizer's own end; not checked here.

    Fine-tunes for chat often change the tokenizer's alone. `backend` is its vocabulary, where that is already read.
    """
    generation = optional_json(path / "generation_config.json")
    values = [*(source.get("eos_token_id") for source in (config, generation)), _own_end(path, backend)]
    lists = [value if isinstance(value, list) else [value] for value in values if value is not None]
    ids = [token for listed in lists for token in listed]
    return [token for at, token in enumerate(ids) if token not in ids[:at]]  # what is no id may not be hashable


def _own_end(path: Path, backend: tokenizers.Tokenizer | None) -> int | None:
    """Id of the tokenizer's `eos_token`. The config mostly tells it, which saves reading the vocabulary."""
    config = read_tokenizer_config(path)
    text, decoder, file = stored_text(config.get("eos_token")), config.get("added_tokens_decoder"), path / "tokenizer.json"
    if text is None:
        return None
    told = decoder.items() if isinstance(decoder, Mapping) else ()
    found = [int(token) for token, value in told if token.isdecimal() and stored_text(value) == text]
    if backend is None and not found and file.is_file():
        backend = read_backend(file)
    return backend.token_to_id(text) if backend is not None else next(iter(found), None)


def gguf_end_ids(header: GgufHeader) -> set[int]:
    """Ids that end a generation: those that the metadata names and those that the vocabulary spells.

    Two exceptions of llama.cpp are kept: `<|end|>` only ends a message where `<|return|>` and `<|call|>` (or `<|calls|>`
    and `<|flush|>`) exist, and `</s>` is text where `<|tool_response>` exists.
    """
    spelled = _spelled(header)
    ends = {text for text in _ENDS if text in spelled}
    calls = bool(ends & {"<|call|>", "<|calls|>"})
    if calls and ends & {"<|return|>", "<|flush|>"}:
        ends.discard("<|end|>")
    if "<|tool_response>" in ends:
        ends.discard("</s>")
    named = {header.get(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")}
    fill_in = {_fill_in(header, spelled, name) for name in _FILL_IN_ENDS}
    return {token for token in named | fill_in if token is not None} | {spelled[text] for text in ends}


def _fill_in(header: GgufHeader, spelled: dict[str, int], name: str) -> int | None:
    first = next((spelled[text] for text in _FILL_IN_ENDS[name] if text in spelled), None)
    return header.get(f"tokenizer.ggml.{name}_token_id", int, first)


def _spelled(header: GgufHeader) -> dict[str, int]:
    """Ids of the texts of interest; the vocabulary is not kept."""
    if not isinstance(header.metadata.get("tokenizer.ggml.tokens"), GgufArray):
        return {}
    return {text: index for index, text in enumerate(header.strings("tokenizer.ggml.tokens")) if text in END_TEXTS}
