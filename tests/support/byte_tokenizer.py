"""A tokenizer small enough to reason about: one token per byte, and four control tokens. Fits `text.chat.Tokenizer`."""

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

VOCAB_SIZE = 260
EOS, USER, ASSISTANT, SYSTEM = 256, 257, 258, 259
CONTROL = {"<eos>": EOS, "<user>": USER, "<assistant>": ASSISTANT, "<system>": SYSTEM}


class Bytewise:
    """The ids of a text, some at a time. One that says "endless" has no end, and tells its tokenizer of every attempt."""

    def __init__(self, tokenizer: "ByteTokenizer", text: str) -> None:
        self.ids: list[int] = []
        self.is_done = False
        self._tokenizer, self._all, self._is_endless = tokenizer, tokenizer.encode(text), "endless" in text

    def advance(self) -> None:
        """A thousand more."""
        with self._tokenizer.changed:
            self._tokenizer.num_advances += 1
            self._tokenizer.changed.notify_all()
        if not self._is_endless:
            self.ids = self._all[: len(self.ids) + 1000]
            self.is_done = self.ids == self._all


class NoControls:
    """Nothing is held back, and nothing told apart."""

    def held(self, text: str) -> str:
        """As it is."""
        return text


class ByteTokenizer:
    """Ids 0 to 255 are bytes of UTF-8; the rest have no text."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCAB_SIZE
    controls = NoControls()
    longest_token_bytes = max(map(len, CONTROL))

    def __init__(self) -> None:
        self.num_advances = 0
        self.changed = threading.Condition()

    def special_id(self, text: str) -> int | None:
        """Of a control token."""
        return CONTROL.get(text)

    def fewest_tokens(self, text: str) -> int:
        """Were it all control tokens."""
        return -(-len(text.encode()) // self.longest_token_bytes)

    def gradually(self, text: str, add_special_tokens: bool = True) -> "Bytewise":
        """A thousand tokens at a time."""
        return Bytewise(self, text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Bytes, with control tokens where they are written out."""
        parts = re.split("(" + "|".join(CONTROL) + ")", text)
        return [token for part in parts for token in ([CONTROL[part]] if part in CONTROL else part.encode())]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes; control tokens are left out."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def render_chat(self, messages: Sequence[Mapping[str, Any]], most_chars: int | None = None, **variables: Any) -> str:
        """`<role>content` for each, then the assistant's turn; a system message must come first, as in many templates."""
        if any(message["role"] == "system" for message in messages[1:]):
            raise ValueError("the system message must come first")
        tail = "<assistant>" if variables.get("enable_thinking", True) else "<assistant>no thinking"
        if not variables.get("add_generation_prompt", True):
            tail = ""
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + tail


def load_byte_tokenizer(path: str) -> ByteTokenizer:
    """What a server takes in place of the loader of real tokenizers."""
    return ByteTokenizer()
