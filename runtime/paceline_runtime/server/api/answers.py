"""One answer as it grows: tokens from the engine become text that is safe to show, and the numbers that usage reports.

`generation` makes one `Answer` per choice. An answer knows no JSON and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline_runtime.messages import FinishReason, TokenLogprobs, Tokens
from paceline_runtime.text.detokenizer import Decoder
from paceline_runtime.text.stream import TextStream


@dataclass(frozen=True)
class Piece:
    """What one token added. `text` is often empty: half a character, or what may yet become a stop string.

    `offset` is where the token's own text begins in the answer, in characters.
    """

    text: str
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    offset: int = 0


class Answer:
    """The state of one choice. The pieces' texts joined are the answer: it ends before a stop string or stop token."""

    def __init__(self, tokenizer: Decoder, prompt_ids: Sequence[int], stops: Sequence[str]) -> None:
        self._stream = TextStream(tokenizer.decode, prompt_ids, stops)
        self.num_tokens = 0
        self.num_cached = 0
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_steps = 0
        self.finish_reason: FinishReason | None = None

    def feed(self, tokens: Tokens) -> Iterator[Piece]:
        """One piece per token, the last with the finish reason if this was the end."""
        self._count(tokens)
        entries: Sequence[TokenLogprobs | None] = tokens.logprobs or [None] * len(tokens.token_ids)
        last = len(tokens.token_ids) - 1
        for position, (token_id, logprobs) in enumerate(zip(tokens.token_ids, entries, strict=True)):
            ended = tokens.finish_reason if position == last else None
            # A stop token has no place in the text; one that completed a stop string was text before.
            is_text = ended != "stop" or tokens.stop_text is not None
            offset = self._stream.num_chars
            text = self._stream.push(token_id) if is_text else ""
            yield Piece(text + (self._stream.flush() if ended else ""), logprobs, ended, offset)
        if tokens.finish_reason and not tokens.token_ids:
            yield Piece(self._stream.flush(), None, tokens.finish_reason)

    def _count(self, tokens: Tokens) -> None:
        self.num_tokens += len(tokens.token_ids)
        self.num_cached = max(self.num_cached, tokens.cached_tokens)
        self.num_drafted += tokens.drafted
        self.num_accepted += tokens.accepted
        self.num_steps += tokens.steps
        self.finish_reason = tokens.finish_reason


@dataclass(frozen=True)
class Usage:
    """Token counts of a whole response. A prompt with several answers counts once, with what its first answer found cached."""

    num_prompt: int
    num_completion: int
    num_cached: int
    num_drafted: int
    num_accepted: int
    num_steps: int


def usage_of(prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> Usage:
    """The sums over all answers; `answers` holds the same number for every prompt, in order."""
    per_prompt = len(answers) // len(prompts)
    return Usage(
        num_prompt=sum(len(prompt) for prompt in prompts),
        num_completion=sum(answer.num_tokens for answer in answers),
        num_cached=sum(answer.num_cached for answer in answers[::per_prompt]),
        num_drafted=sum(answer.num_drafted for answer in answers),
        num_accepted=sum(answer.num_accepted for answer in answers),
        num_steps=sum(answer.num_steps for answer in answers),
    )
