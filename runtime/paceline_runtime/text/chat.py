"""A conversation as the token ids that a model expects. Used by the server for chat completions.

The template is the checkpoint's and belongs to the tokenizer; this module knows what OpenAI's roles mean to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# OpenAI's newer name for the same thing; templates know the older one.
TEMPLATE_ROLES = {"developer": "system"}


class Tokenizer(Protocol):
    """What the server needs of a tokenizer; `text.tokenizer.Tokenizer` is the real one."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written out in it are recognized."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, with U+FFFD where bytes form no character."""

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The conversation as the checkpoint's template writes it. Raises ValueError when the template refuses it."""


@dataclass(frozen=True)
class Turn:
    """Who said what."""

    role: str
    text: str


@dataclass(frozen=True)
class ChatPrompt:
    """Ids of a rendered conversation. The last `num_opening` of them only open the assistant's turn."""

    ids: list[int]
    num_opening: int


def chat_prompt(tokenizer: Tokenizer, turns: Sequence[Turn], variables: Mapping[str, Any]) -> ChatPrompt:
    """The prompt of a conversation, which holds its own special tokens; `variables` are the template's switches.

    What opens the turn is what the template adds when it is asked to; the next turn's rendering may lack parts of it, such
    as an empty thought.
    """
    messages = [{"role": TEMPLATE_ROLES.get(turn.role, turn.role), "content": turn.text} for turn in turns]
    text = tokenizer.render_chat(messages, **variables)
    history = tokenizer.render_chat(messages, add_generation_prompt=False, **variables)
    opening = text[len(history) :] if text.startswith(history) else ""
    ids, opening_ids = (tokenizer.encode(part, add_special_tokens=False) for part in (text, opening))
    return ChatPrompt(ids, len(opening_ids))
