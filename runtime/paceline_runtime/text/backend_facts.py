"""What can be said of a `tokenizers` backend before it sees a text: how much text a token stands for, where a text may be cut.

`Tokenizer` calls it once. Whatever this module does not know to be safe counts as unsafe: then there is no bound, and no cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

NFC_SHRINKS = 4
"""NFC makes of no text one of less than a quarter of its bytes: U+1FBE U+0308 U+0301, 7 bytes, becomes U+0390, 2 bytes."""
_OF_COMPOSED = re.compile(b"[\x80-\xbf\xc2-\xf0]")
"""Bytes that a normalizer may make of others: not those of ASCII, of planes without letters, and that UTF-8 never has."""
LEAST_MARGIN = 16
"""No pattern below looks further ahead than this, but along a run of blanks."""
_LETTERS_AND_SIGNS = (
    (r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    (r"[^\r\n\p{L}\p{N}]?[\p{L}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    (r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),
)
_PATTERNS = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{letters}|{digits}|{signs}|\s*[\r\n]+|\s+(?!\S)|\s+"
    for letters, signs in _LETTERS_AND_SIGNS
    for digits in (r"\p{N}", r"\p{N}{1,3}")
)
"""Llama 3's pattern, Qwen's and their like. Each alternative takes a run of one class of characters: from inside of a run it
goes on to the same end. None looks back; ahead they look one character, or to the end of a run of blanks."""


@dataclass(frozen=True)
class BackendFacts:
    """What is known of a backend.

    `longest_token_bytes` are the bytes of text that one token stands for at most, `silent_bytes` not counted, which are
    those that no token spells; None where some swallow text without a bound: unknown words, blanks beside a token that takes
    them in, what a normalizer or pre-tokenizer removes. `cut_margin` are the characters at the end of a piece of text whose
    tokens may depend on what follows it; None where no piece tells anything of the whole, see `GradualEncoding`. `around`
    are the special tokens before and after a text's own; None where a post-processor does more than adding those.
    """

    longest_token_bytes: int | None
    silent_bytes: bytes
    cut_margin: int | None
    around: tuple[list[int], list[int]] | None


def read_facts(backend: tokenizers.Tokenizer) -> BackendFacts:
    """What is known of this backend. It looks through the vocabulary, which takes a tenth of a second for 50,000 tokens."""
    model, splits, added = backend.model, list(_steps(backend.pre_tokenizer)), list(backend.get_added_tokens_decoder().values())
    vocabulary, around, shrinks = backend.get_vocab(with_added_tokens=False), _around(backend), _shrinks(backend.normalizer)
    swallows = any(token.lstrip or token.rstrip for token in added) or not all(map(_keeps_text, splits))
    if not isinstance(model, models.BPE) or shrinks is None or swallows:
        return BackendFacts(None, b"", None, around)
    silent = _silent_bytes(model, vocabulary, splits)
    if silent is None or (backend.normalizer is not None and _OF_COMPOSED.search(silent)):
        return BackendFacts(None, b"", None, around)
    longest = max(map(len if _is_byte_level(splits) else _num_bytes, vocabulary), default=0)
    contents = [token.content for token in added]
    if backend.normalizer is not None:
        contents += [backend.normalizer.normalize_str(text) for text in contents]
    can_cut = (
        _is_known(splits)
        and [step["type"] for step in _steps(backend.normalizer)] in ([], ["NFC"])
        and not any(token.single_word for token in added)
        and not (model.dropout or model.unk_token or model.continuing_subword_prefix or model.end_of_word_suffix)
        and around is not None
    )
    bound = shrinks * max([longest, *map(_num_bytes, contents)])
    margin = shrinks * max([LEAST_MARGIN, *map(len, contents)])
    return BackendFacts(bound, silent, margin if can_cut else None, around)


def _around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    plain, whole = (backend.encode("a", add_special_tokens=flag).ids for flag in (False, True))
    places = [at for at in range(len(whole)) if plain and whole[at : at + len(plain)] == plain]
    return (whole[: places[0]], whole[places[0] + len(plain) :]) if len(places) == 1 else None


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer or pre-tokenizer, in order."""
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        step = waiting.pop(0)
        parts = step.get("normalizers", step.get("pretokenizers"))
        if step["type"] == "Sequence":
            waiting = [*parts, *waiting]
        else:
            yield step


def _shrinks(normalizer: Any) -> int | None:
    """By what factor a text may lose bytes in this part; None where there is no bound."""
    factor = 1
    for step in _steps(normalizer):
        match step:
            case {"type": "NFC"}:
                factor *= NFC_SHRINKS
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if _num_bytes(old) <= _num_bytes(new):
                pass
            case {"type": "Prepend"}:
                pass
            case _:
                return None
    return factor


def _keeps_text(split: dict[str, Any]) -> bool:
    kind = split["type"]
    return kind in ("ByteLevel", "Digits", "Metaspace") or (kind == "Split" and split["behavior"] != "Removed")


def _is_byte_level(splits: list[dict[str, Any]]) -> bool:
    return bool(splits) and splits[-1]["type"] == "ByteLevel"


def _silent_bytes(model: models.BPE, vocabulary: dict[str, int], splits: list[dict[str, Any]]) -> bytes | None:
    """Bytes without a token: they are dropped, or many of them become one unknown token. None where characters have none."""
    if _is_byte_level(splits):
        return bytes(byte for byte, symbol in _byte_symbols().items() if symbol not in vocabulary)
    has_all = model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return b"" if has_all else None


def _byte_symbols() -> dict[int, str]:
    """How GPT-2 and its like write bytes in a vocabulary: a byte that is printable in Latin-1 as that character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + at) for at, byte in enumerate(others)}


def _is_known(splits: list[dict[str, Any]]) -> bool:
    """Whether text is split by GPT-2's rules, perhaps after its digits, or by one of the patterns above."""
    match splits:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return True
        case [{"type": "Digits"}, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return True
        case [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return pattern in _PATTERNS
    return False


def _num_bytes(text: str) -> int:
    return len(text.encode())
