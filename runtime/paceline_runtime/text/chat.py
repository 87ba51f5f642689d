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


def chat_ids(tokenizer: Tokenizer, turns: Sequence[Turn], variables: Mapping[str, Any]) -> list[int]:
    """Ids of the rendered conversation, which holds its own special tokens; `variables` are the template's switches."""
    messages = [{"role": TEMPLATE_ROLES.get(turn.role, turn.role), "content": turn.text} for turn in turns]
    return tokenizer.encode(tokenizer.render_chat(messages, **variables), add_special_tokens=False)
