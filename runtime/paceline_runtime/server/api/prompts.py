"""From the texts of requests to token ids that fit the context, with no more work than it takes to see that one does not.

`jobs` uses it. A few threads do this for all requests, a window of a text in turn: a short prompt does not wait for long ones,
nor anyone for a client that has left. It knows tokenizers, nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline_runtime.errors import Problem, RequestError
from paceline_runtime.text.bounded import SHORT_CHARS, BoundedEncoding, TooManyTokensError, check_bytes
from paceline_runtime.text.chat import Encoder, Tokenizer, Turn, chat_text

T = TypeVar("T")
MOST_THREADS = 4
"""A few million characters a second, which is more than engines prefill."""
LONG_CHARS = 1 << 20
"""Texts beyond this leave so much freed memory behind that it is worth a call to give it back."""


@dataclass(frozen=True)
class Room:
    """What a model takes as a prompt beside an answer of `num_answer` tokens. `field` is what the request calls the prompt."""

    max_model_len: int
    vocab_size: int
    num_answer: int
    field: str

    @property
    def most(self) -> int:
        """Tokens that the prompt may have."""
        return self.max_model_len - self.num_answer

    def check(self, ids: Sequence[int]) -> None:
        """RequestError for ids that are too few, too many, or none of the model's."""
        if not ids:
            raise RequestError([Problem(self.field, f"{self.field} must come to at least one token")])
        if len(ids) > self.most:
            raise self._too_long(len(ids), is_all=True)
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            message = f"{self.field}: token id {outside} is outside the vocabulary of {self.vocab_size}"
            raise RequestError([Problem(self.field, message)])

    def check_bytes(self, encoder: Encoder, text: str) -> None:
        """RequestError for a text that leaves no room even if it is made of the longest tokens alone."""
        with self.refusing():
            check_bytes(encoder, text, self.most)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Around what raises TooManyTokensError."""
        try:
            yield
        except TooManyTokensError as error:
            raise self._too_long(error.num_tokens, is_all=error.is_all) from None

    def _too_long(self, num_prompt: int, *, is_all: bool) -> RequestError:
        about = "" if is_all else "at least "
        message = (
            f"the context holds {self.max_model_len} tokens, but {about}{num_prompt} in the prompt and {self.num_answer} for "
            f"the answer make {about}{num_prompt + self.num_answer}: shorten the prompt, lower max_tokens, or start the server "
            "with a larger --max-model-len"
        )
        return RequestError([Problem(self.field, message, "context_length_exceeded")])


class Prompts:
    """Makes token ids of texts, for one server."""

    def __init__(self, num_threads: int | None = None) -> None:
        few = max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))
        self._threads = ThreadPoolExecutor(few if num_threads is None else num_threads, thread_name_prefix="tokenize")

    async def of_text(self, encoder: Encoder, text: str, room: Room, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text. RequestError when they leave no room; cancelled, it ends with the window that it is at."""
        try:
            with room.refusing():
                encoding = BoundedEncoding(encoder, text, room.most, add_special_tokens=add_special_tokens)
                while not encoding.is_done:
                    await self._in_thread(encoding.advance)
        finally:
            if len(text) > LONG_CHARS:
                self._threads.submit(_give_back)
        room.check(encoding.ids)
        return encoding.ids

    async def of_chat(
        self, tokenizer: Tokenizer, turns: Sequence[Turn], variables: Mapping[str, Any], room: Room
    ) -> tuple[list[int], int]:
        """The ids of a conversation, and how many of the last only open the answer. ValueError when the template refuses it."""
        longest = tokenizer.longest_token_bytes
        most_chars = None if longest is None else max(longest * room.most, SHORT_CHARS)
        chat = await self._in_thread(lambda: chat_text(tokenizer, turns, variables, most_chars))
        if chat.opening is None:
            room.check_bytes(tokenizer, chat.text)
            chat = await self._in_thread(lambda: chat_text(tokenizer, turns, variables))  # it has many bytes without a token
        ids = await self.of_text(chat.encoder, chat.text, room, add_special_tokens=False)
        if not chat.opening:
            return ids, 0
        return ids, len(await self.of_text(tokenizer, chat.opening, room, add_special_tokens=False))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _give_back() -> None:
    """Hand freed memory to the system: glibc keeps what threads have freed, 130 MiB after a text of 1.5 MiB in one piece."""
    with contextlib.suppress(AttributeError):  # another C library has no such call
        ctypes.CDLL(None).malloc_trim(0)
