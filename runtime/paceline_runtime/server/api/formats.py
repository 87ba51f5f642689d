"""The JSON that goes out: chat completions and completions, whole or as chunks, in OpenAI's shape. Pure functions of values.

`generation` uses them and knows only `Format`. The two formats differ in where text and logprobs stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline_runtime.messages import TokenLogprobs
from paceline_runtime.server.api.answers import Piece, Usage
from paceline_runtime.server.api.jobs import Job
from paceline_runtime.text.detokenizer import Decoder, token_text

Json = dict[str, Any]


class Format(Protocol):
    """How one endpoint writes what was generated."""

    def opening(self, job: Job, answer: int) -> Json | None:
        """The chunk before an answer's first piece, if the endpoint has one."""

    def chunk(self, job: Job, answer: int, piece: Piece) -> Json:
        """One piece of one answer."""

    def usage_chunk(self, job: Job, usage: Usage) -> Json:
        """The last chunk, without choices."""

    def whole(self, job: Job, pieces: Sequence[Sequence[Piece]], usage: Usage) -> Json:
        """The response of a request that does not stream; `pieces` per answer."""


class ChatFormat:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer

    def opening(self, job: Job, answer: int) -> Json:
        """The role comes first."""
        return self._chunk(job, [self._delta(answer, {"role": "assistant", "content": ""}, None, None)])

    def chunk(self, job: Job, answer: int, piece: Piece) -> Json:
        """A delta; the last one of an answer may have no text."""
        delta = {"content": piece.text} if piece.text or piece.finish_reason is None else {}
        return self._chunk(job, [self._delta(answer, delta, self._logprobs([piece]), piece.finish_reason)])

    def usage_chunk(self, job: Job, usage: Usage) -> Json:
        """Usage alone."""
        return {**self._chunk(job, []), "usage": usage_json(usage)}

    def whole(self, job: Job, pieces: Sequence[Sequence[Piece]], usage: Usage) -> Json:
        """All answers as messages."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": _text(answer), "refusal": None},
                "logprobs": self._logprobs(answer),
                "finish_reason": answer[-1].finish_reason,
            }
            for index, answer in enumerate(pieces)
        ]
        return {**_head(job, "chat.completion"), "choices": choices, "usage": usage_json(usage)}

    def _chunk(self, job: Job, choices: list[Json]) -> Json:
        return {**_head(job, "chat.completion.chunk"), "choices": choices}

    def _delta(self, answer: int, delta: Json, logprobs: Json | None, finish_reason: str | None) -> Json:
        return {"index": answer, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, pieces: Sequence[Piece]) -> Json | None:
        entries = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        return {"content": [self._entry(entry) for entry in entries], "refusal": None} if entries else None

    def _entry(self, entry: TokenLogprobs) -> Json:
        alternatives = zip(entry.top_ids, entry.top_logprobs, strict=True)
        return {
            **self._token(entry.token_id, entry.logprob),
            "top_logprobs": [self._token(token_id, logprob) for token_id, logprob in alternatives],
        }

    def _token(self, token_id: int, logprob: float) -> Json:
        text = token_text(self._tokenizer.decode, token_id)
        # Part of a character has no text of its own, so its bytes cannot be told from the text.
        return {
            "token": text,
            "logprob": logprob,
            "bytes": None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode()),
        }


class CompletionFormat:
    """`text_completion`, whole and in chunks alike."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer

    def opening(self, job: Job, answer: int) -> None:
        """Completions begin with text."""

    def chunk(self, job: Job, answer: int, piece: Piece) -> Json:
        """A piece looks like a whole response of one choice."""
        return {**_head(job, "text_completion"), "choices": [self._choice(answer, [piece])]}

    def usage_chunk(self, job: Job, usage: Usage) -> Json:
        """Usage alone."""
        return {**_head(job, "text_completion"), "choices": [], "usage": usage_json(usage)}

    def whole(self, job: Job, pieces: Sequence[Sequence[Piece]], usage: Usage) -> Json:
        """All answers as texts."""
        choices = [self._choice(index, answer) for index, answer in enumerate(pieces)]
        return {**_head(job, "text_completion"), "choices": choices, "usage": usage_json(usage)}

    def _choice(self, index: int, pieces: Sequence[Piece]) -> Json:
        return {
            "index": index,
            "text": _text(pieces),
            "logprobs": self._logprobs(pieces),
            "finish_reason": pieces[-1].finish_reason,
        }

    def _logprobs(self, pieces: Sequence[Piece]) -> Json | None:
        told = [(piece.logprobs, piece.offset) for piece in pieces if piece.logprobs is not None]
        if not told:
            return None
        entries = [entry for entry, _ in told]
        decode = self._tokenizer.decode
        return {
            "tokens": [token_text(decode, entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._alternatives(entry) for entry in entries],
            "text_offset": [offset for _, offset in told],
        }

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        """By text: of tokens with the same one, such as pieces of characters, the likeliest."""
        found: dict[str, float] = {}
        for token_id, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
            found.setdefault(token_text(self._tokenizer.decode, token_id), logprob)
        return found


def usage_json(usage: Usage) -> Json:
    """OpenAI's usage, with what our engine adds to it: drafted tokens and verify steps."""
    return {
        "prompt_tokens": usage.num_prompt,
        "completion_tokens": usage.num_completion,
        "total_tokens": usage.num_prompt + usage.num_completion,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.num_accepted,
            "rejected_prediction_tokens": usage.num_drafted - usage.num_accepted,
            "drafted_tokens": usage.num_drafted,
            "decode_steps": usage.num_steps,
        },
    }


def _head(job: Job, kind: str) -> Json:
    return {"id": job.job_id, "object": kind, "created": job.created_s, "model": job.model}


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
