"""The tokenizer in a GGUF's metadata: byte-level BPE with the splitting rules that `tokenizer.ggml.pre` names.

`load` calls it. Rules: `llama-vocab.cpp` of llama.cpp, spelled as pre-tokenizers of the `tokenizers` library. SentencePiece,
WordPiece and unknown splitting rules are refused by name: a wrong split changes ids without any error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from paceline_compat.errors import MetadataError
from paceline_compat.formats.gguf_header import GgufHeader, read_header
from paceline_compat.places.source import LocalSource
from paceline_runtime.text.end_tokens import END_TEXTS, gguf_end_ids
from paceline_runtime.text.tokenizer import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(letters: str, digits: str) -> str:
    """The regular expression of GPT-4's family: runs of letters, of digits, of other signs, of blanks."""
    word, other = rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+", rf" ?[^\s{letters}\p{{N}}]+[\r\n]*"
    return "|".join((_CONTRACTIONS, word, digits, other, _LINES))


@dataclass(frozen=True)
class _Split:
    """How text is cut before merging. `pattern` None stands for GPT-2's own expression."""

    pattern: str | None = None
    single_digits: bool = False
    normalize: bool = False
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = _Split(_words(r"\p{L}", r"\p{N}{1,3}"), whole_words=True, add_bos=True)
_QWEN2 = _Split(_words(r"\p{L}", r"\p{N}"), normalize=True)
_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": _Split(_words(r"\p{L}\p{M}", r"\p{N}"), normalize=True),
}


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF. Raises MetadataError naming the tokenizer model or splitting rule that is not read."""
    header = read_header(LocalSource(path))
    split = _split(header)
    tokens = header.strings("tokenizer.ggml.tokens")
    special = {
        f"{name}_token": tokens[token_id]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        if (token_id := _token_id(header, key, len(tokens))) is not None
    }
    return Tokenizer(
        _backend(header, split, tokens, special),
        special_tokens=special,
        chat_template=header.get("tokenizer.chat_template", str),
    )


def _split(header: GgufHeader) -> _Split:
    model = header.require("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise MetadataError(header.source.name, f"tokenizer model {model!r} is not supported; there is 'gpt2' (BPE)")
    name = header.require("tokenizer.ggml.pre", str)
    if name not in _SPLITS:
        raise MetadataError(
            header.source.name, f"pre-tokenizer {name!r} is not supported; there are {', '.join(sorted(_SPLITS))}"
        )
    return _SPLITS[name]


def _token_id(header: GgufHeader, name: str, num_tokens: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    token_id = header.get(key, int)
    if token_id is not None and not 0 <= token_id < num_tokens:
        raise MetadataError(header.source.name, f"metadata key {key!r} is {token_id}, and there are {num_tokens} tokens")
    return token_id


def _backend(header: GgufHeader, split: _Split, tokens: list[str], special: dict[str, str]) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(_bpe(header, tokens, split.whole_words))
    if split.normalize:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(split)
    backend.decoder = decoders.ByteLevel()
    kinds = _kinds(header, tokens)
    backend.add_special_tokens(_added(tokens, kinds, _CONTROL))
    backend.add_tokens(_added(tokens, kinds, _USER_DEFINED))
    _surround(backend, header, split, special)
    return backend


def _kinds(header: GgufHeader, tokens: list[str]) -> list[float]:
    """The kind of each token. Without it a control token would be text; many files state a wrong kind for ends."""
    kinds = header.numbers("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise MetadataError(header.source.name, f"tokenizer.ggml.token_type has {len(kinds)} kinds for {len(tokens)} tokens")
    ends = gguf_end_ids(header)
    return [_CONTROL if at in ends and tokens[at] in END_TEXTS else kind for at, kind in enumerate(kinds)]


def _bpe(header: GgufHeader, tokens: list[str], whole_words: bool) -> models.BPE:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise MetadataError(header.source.name, f"{len(tokens) - len(vocabulary)} tokens appear twice")
    stored = header.strings("tokenizer.ggml.merges")
    try:
        merges = [(left, right) for left, right in map(str.split, stored)]
        return models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=whole_words)
    except Exception as error:  # the library raises plain Exception for a merge that the vocabulary lacks
        raise MetadataError(header.source.name, f"tokenizer.ggml.merges do not fit the vocabulary: {error}") from error


def _pre_tokenizer(split: _Split) -> pre_tokenizers.PreTokenizer:
    if split.pattern is None:
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if split.single_digits else []
        return pre_tokenizers.Sequence([*digits, gpt2])
    words = pre_tokenizers.Split(tokenizers.Regex(split.pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _added(tokens: list[str], kinds: Iterable[float], kind: int) -> list[tokenizers.AddedToken]:
    is_special = kind == _CONTROL
    return [
        tokenizers.AddedToken(token, special=is_special, normalized=False)
        for token, own in zip(tokens, kinds, strict=True)
        if own == kind
    ]


def _surround(backend: tokenizers.Tokenizer, header: GgufHeader, split: _Split, special: dict[str, str]) -> None:
    """Put the begin and end tokens around a text where the file asks for them."""
    add_bos = header.get("tokenizer.ggml.add_bos_token", bool, split.add_bos) and "bos_token" in special
    add_eos = header.get("tokenizer.ggml.add_eos_token", bool, False) and "eos_token" in special
    if not (add_bos or add_eos):
        return
    first, last = ([special[n]] if wanted else [] for n, wanted in (("bos_token", add_bos), ("eos_token", add_eos)))
    named = [(token, backend.token_to_id(token)) for token in dict.fromkeys((*first, *last))]
    backend.post_processor = processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=named)
