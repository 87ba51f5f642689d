"""A conversation as the text that a model expects. The server uses it for chat completions.

The template is the checkpoint's and belongs to the tokenizer; this module knows what OpenAI's roles mean to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# OpenAI's newer name for the same thing; templates know the older one.
TEMPLATE_ROLES = {"developer": "system"}
# Whose control tokens are words. The system's text is the developer's, who may mean them (some switch thinking on).
_HELD_ROLES = frozenset({"user", "assistant"})


class Gradual(Protocol):
    """The ids of one text as they become known."""

    ids: list[int]
    is_done: bool

    def advance(self) -> None:
        """A moment's work: some more ids, or the end."""


class Encoder(Protocol):
    """Makes ids of texts."""

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least; 0 where nothing is known without tokenizing it."""

    def gradually(self, text: str, add_special_tokens: bool = True) -> Gradual:
        """Token ids of `text`, bit by bit; control tokens written out in it are recognized."""


class Controls(Protocol):
    """Tells a template's control tokens from those that somebody spells; `text.control_tokens.ControlTokens` does."""

    def held(self, text: str) -> str:
        """What somebody said, with a placeholder for each control token that it spells."""

    def restored(self, text: str) -> str:
        """A text with what was held back."""

    def named(self, text: str) -> str:
        """The text for `encoder`: what it spells are control tokens, what was held back are words."""

    @property
    def encoder(self) -> Encoder:
        """Reads named texts."""


class Tokenizer(Encoder, Protocol):
    """What the server needs of a tokenizer; `text.tokenizer.Tokenizer` is the real one."""

    @property
    def controls(self) -> Controls:
        """Its control tokens."""

    @property
    def longest_token_bytes(self) -> int | None:
        """Bytes of text that a token stands for at most, None where there is no such bound."""

    def special_id(self, text: str) -> int | None:
        """The id of a special token, which `decode` leaves out; None for any other text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, with U+FFFD where bytes form no character."""

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The conversation as the checkpoint's template writes it. Raises ValueError when the template refuses it.

        Among the variables is `most_chars`: of a longer rendering only its beginning is wanted, a bit more than so much.
        """


@dataclass(frozen=True)
class Turn:
    """Who said what."""

    role: str
    text: str


@dataclass(frozen=True)
class ChatText:
    """A rendered conversation, which holds its own special tokens. `opening`, its end, only opens the assistant's turn.

    It is None when the text is not all of it. `encoder` reads the text.
    """

    text: str
    opening: str | None
    encoder: Encoder


def chat_text(
    tokenizer: Tokenizer, turns: Sequence[Turn], variables: Mapping[str, Any], most_chars: int | None = None
) -> ChatText:
    """The prompt of a conversation; `variables` are the template's switches. Beyond `most_chars` it is cut.

    What opens the turn is what the template adds when it is asked to; the next turn's rendering may lack parts of it, such
    as an empty thought.
    """
    messages = [{"role": TEMPLATE_ROLES.get(turn.role, turn.role), "content": turn.text} for turn in turns]
    text = tokenizer.render_chat(messages, **variables, most_chars=most_chars)
    if most_chars is not None and len(text) > most_chars:
        return ChatText(text, None, tokenizer)
    history = tokenizer.render_chat(messages, **variables, add_generation_prompt=False)
    opening = text[len(history) :] if text.startswith(history) else ""
    named = _named(tokenizer, messages, variables, text)
    return ChatText(text, opening, tokenizer) if named is None else ChatText(named, opening, tokenizer.controls.encoder)


def _named(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any], text: str) -> str | None:
    """The rendered text with its control tokens named, in which those that user or assistant spell are words.

    None where they spell none, and where the template looks into their words: rendered with placeholders, it writes something
    else. Their control tokens are read as such then, as in other servers.
    """
    controls = tokenizer.controls
    placed = [
        {**message, "content": controls.held(message["content"])} if message["role"] in _HELD_ROLES else message
        for message in messages
    ]
    if placed == messages:
        return None
    try:
        rendered = tokenizer.render_chat(placed, **variables)
    except ValueError:
        return None
    return controls.named(rendered) if controls.restored(rendered) == text else None
