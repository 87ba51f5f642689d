"""Which tokens end a generation: those that a checkpoint's facts name, and those that its tokenizer or vocabulary spells.

The loader and the GGUF tokenizer call it. Source of the rules for GGUF: `llama-vocab.cpp` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline_compat import sole_gguf
from paceline_compat.facts.gguf_checkpoint import named_ends
from paceline_compat.formats.gguf_header import GgufArray, GgufHeader, read_header
from paceline_compat.places.source import LocalSource
from paceline_runtime.text.tokenizer_files import read_backend, read_tokenizer_config, stored_text

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
"""Fill-in-the-middle tokens that end a generation: each by its metadata key, else the first token that is spelled so."""
END_TEXTS = frozenset((*_ENDS, *(text for texts in _FILL_IN_ENDS.values() for text in texts)))


def end_ids(path: Path, named: Iterable[int]) -> tuple[int, ...]:
    """All ids that end a generation of the checkpoint at `path`, whose configs or metadata name some."""
    path = sole_gguf(path)
    own = gguf_end_ids(read_header(LocalSource(path))) if path.suffix == ".gguf" else _folder_end_ids(path)
    return tuple(sorted({*named, *own}))


def _folder_end_ids(path: Path) -> set[int]:
    """The id of the tokenizer's `eos_token`: fine-tunes for chat often change it alone.

    The config mostly tells the id, which saves reading the vocabulary.
    """
    config = read_tokenizer_config(path)
    text, decoder, file = stored_text(config.get("eos_token")), config.get("added_tokens_decoder"), path / "tokenizer.json"
    if text is None:
        return set()
    told = decoder.items() if isinstance(decoder, Mapping) else ()
    found = {int(token) for token, value in told if token.isdecimal() and stored_text(value) == text}
    if not found and file.is_file():
        token_id = read_backend(file).token_to_id(text)
        return set() if token_id is None else {token_id}
    return found


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
    fill_in = {_fill_in(header, spelled, name) for name in _FILL_IN_ENDS}
    return named_ends(header) | {token for token in fill_in if token is not None} | {spelled[text] for text in ends}


def _fill_in(header: GgufHeader, spelled: dict[str, int], name: str) -> int | None:
    first = next((spelled[text] for text in _FILL_IN_ENDS[name] if text in spelled), None)
    return header.get(f"tokenizer.ggml.{name}_token_id", int, first)


def _spelled(header: GgufHeader) -> dict[str, int]:
    """Ids of the texts of interest; the vocabulary is not kept."""
    if not isinstance(header.metadata.get("tokenizer.ggml.tokens"), GgufArray):
        return {}
    return {text: index for index, text in enumerate(header.strings("tokenizer.ggml.tokens")) if text in END_TEXTS}
