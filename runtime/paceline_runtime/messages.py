"""What the server process and the engine process say to each other: tagged msgspec structs, msgpack over a ZeroMQ ipc socket.

Both sides import it; it knows neither of them, and no torch. A request is one `Submit`; its answer is a stream of `Tokens`
whose last has a `finish_reason`, or one `Refused`. Before any of that the engine reports `Loading` and then `Ready`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from paceline_runtime.params import SamplingParams

FinishReason = Literal["stop", "length", "abort"]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages; the tag is the class name."""


class Submit(Message, frozen=True, kw_only=True):
    """Start a request.

    `choice` numbers the answers of one `n` > 1 call, so that each draws its own randomness. `num_generation_prompt` counts
    the prompt's last tokens that only open the assistant's turn: the next turn's rendering does not repeat them, so the
    cache keeps a state before them. `cache_salt` separates prefix caches of callers who must not share.
    """

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    choice: int = 0
    num_generation_prompt: int = 0
    cache_salt: str = ""


class Abort(Message, frozen=True):
    """Stop a request and free all it holds; unknown ids are ignored, since an end and an abort may cross."""

    request_id: str


class Rebuild(Message, frozen=True, kw_only=True):
    """Give the idle engine another cache: what is None stays as it is. Answered by one `Rebuilt`."""

    num_pages: int | None = None
    num_state_slots: int | None = None
    memory_bytes: int | None = None


class Shutdown(Message, frozen=True):
    """End the engine process once running requests are aborted."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log probability of one committed token under the target, with the likeliest alternatives, likeliest first."""

    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class Tokens(Message, frozen=True, kw_only=True):
    """The tokens one step committed for a request, already cut at its end.

    `stop_text` is the stop string that ended the request: the text ends before it, the ids include the token that completed
    it. `drafted` and `accepted` count this step's draft tokens, `steps` its verify steps; `cached_tokens` is the prompt's.
    """

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    logprobs: list[TokenLogprobs] | None = None


class Refused(Message, frozen=True, kw_only=True):
    """The request never ran. `code` is OpenAI's (`context_length_exceeded`, `invalid_value`), `param` the field."""

    request_id: str
    code: str
    message: str
    param: str | None = None


class Loading(Message, frozen=True):
    """How far start-up is: a phase in words and the fraction of the whole, 0 to 1."""

    phase: str
    fraction: float


class Ready(Message, frozen=True, kw_only=True):
    """The target and the draft are loaded and one warm-up decode is done."""

    model_type: str
    max_model_len: int
    vocab_size: int
    num_pages: int
    plan: str


class Rebuilt(Message, frozen=True, kw_only=True):
    """The cache now has `num_pages`; with an `error` it is as large as before, since requests run (`is_busy`) or it cannot
    change.

    `param` is the field of the `Rebuild` that is at fault.
    """

    num_pages: int
    plan: str
    error: str | None = None
    param: str | None = None
    is_busy: bool = False


class Stats(Message, frozen=True, kw_only=True):
    """A snapshot of the engine's counters and gauges, sent at most once a second; counters only grow."""

    num_running: int
    num_waiting: int
    num_free_pages: int
    num_cached_pages: int
    num_pages: int
    preemptions: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    evicted_pages: int
    prompt_tokens: int
    generated_tokens: int
    steps: int
    drafted_by_position: list[int]
    accepted_by_position: list[int]


class Failed(Message, frozen=True):
    """The engine cannot start or go on; the process exits after sending it."""

    message: str


ToEngine = Submit | Abort | Rebuild | Shutdown
FromEngine = Tokens | Refused | Loading | Ready | Rebuilt | Stats | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
