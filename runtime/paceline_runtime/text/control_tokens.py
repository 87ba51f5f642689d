"""Control tokens that a template writes, told apart from the same words in what somebody said, which stay words.

`chat` renders a conversation with the words held back, and `Tokenizer` has one of these. It knows texts and ids, no templates.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Sequence

import tokenizers

from paceline_runtime.text.encoder import Encoder


class ControlTokens:
    """The special tokens of a backend. Names and placeholders are made up anew in each process: nobody can write them."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        added = backend.get_added_tokens_decoder().items()
        self._backend, self._tokens = backend, {token.content: (at, token) for at, token in added if token.special}
        self._spelled = re.compile(_any_of(list(self._tokens)) or "(?!)")
        nonce = secrets.token_hex(8)
        self._names = {text: f"\ufdd0{nonce}{at:x}\ufdd1" for text, (at, _) in self._tokens.items()}
        self._placeholders = {text: f"\ufdd2{nonce}{at:x}\ufdd3" for text, (at, _) in self._tokens.items()}
        self._texts = {placeholder: text for text, placeholder in self._placeholders.items()}
        self._held = re.compile(f"\ufdd2{nonce}[0-9a-f]+\ufdd3")

    def held(self, text: str) -> str:
        """What somebody said, with a placeholder for each control token that it spells."""
        return self._spelled.sub(lambda found: self._placeholders[found[0]], text)

    def restored(self, text: str) -> str:
        """A text with what was held back."""
        return self._held.sub(lambda found: self._texts[found[0]], text)

    def named(self, text: str) -> str:
        """The text for `encoder`: what it spells are control tokens, what was held back are words."""
        return self.restored(self._spelled.sub(lambda found: self._names[found[0]], text))

    @functools.cached_property
    def encoder(self) -> Encoder:
        """Reads control tokens by their names alone. Made when somebody first spells one: 0.6 s for 50,000 tokens."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True  # the library's word for reading them as text
        backend.add_tokens([_named(token, self._names[text]) for text, (_, token) in self._tokens.items()])
        ids = {backend.token_to_id(self._names[text]): at for text, (at, _) in self._tokens.items()}
        return Encoder(backend, {name: token for name, token in ids.items() if name is not None})


def _any_of(words: Sequence[str]) -> str:
    """An expression for the longest of some words, letter by letter: trying one after the other takes 100 s for 15 MiB."""
    tails: dict[str, list[str]] = {}
    for word in filter(None, words):
        tails.setdefault(word[0], []).append(word[1:])
    branches = "|".join(re.escape(letter) + _any_of(rest) for letter, rest in tails.items())
    if "" in words and branches:
        return f"(?:{branches})?"
    return f"(?:{branches})" if len(tails) > 1 else branches


def _named(token: tokenizers.AddedToken, name: str) -> tokenizers.AddedToken:
    flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
    return tokenizers.AddedToken(name, special=False, normalized=False, **flags)
