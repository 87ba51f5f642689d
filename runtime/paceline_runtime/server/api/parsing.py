"""From the bytes of a request to a checked body and its sampling parameters, or one error that lists every problem.

Pure functions that the routes call. They know neither the model's vocabulary nor its context: `jobs` does.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic
import pydantic_core

from paceline_runtime.errors import Problem, RequestError
from paceline_runtime.params import SamplingParams
from paceline_runtime.server.api import wording
from paceline_runtime.server.api.bodies import (
    NEUTRAL,
    NEUTRAL_MESSAGE,
    ChatBody,
    ChatMessage,
    CommonBody,
    CompletionBody,
    RebuildBody,
)
from paceline_runtime.server.api.counts import too_many_items, too_many_parts

Body = TypeVar("Body", ChatBody, CompletionBody, RebuildBody)

MAX_PROBLEMS = 20
# Describing an error takes longer than sending one: beyond this many, a body would stop the server for seconds.
MAX_ERRORS = 1000
DEFAULT_COMPLETION_TOKENS = 16
MAX_ID_DIGITS = 18
BYTE_ORDER_MARKS = {  # that of UTF-32 begins as UTF-16's
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def parse(raw: bytes, kind: type[Body], most_tokens: int | None = None) -> Body:
    """The body, checked field by field; fields whose value asks for nothing are dropped first.

    A prompt of more ids than `most_tokens` is refused before they are checked.
    """
    data = _json_object(raw)
    if problems := list(too_many_items(data, most_tokens)):
        raise RequestError(problems)
    fields = _without_neutral(data, kind, NEUTRAL)
    if isinstance(messages := fields.get("messages"), list):
        fields["messages"] = [
            _without_neutral(message, ChatMessage, NEUTRAL_MESSAGE) if isinstance(message, dict) else message
            for message in messages
        ]
    try:
        return kind.model_validate(fields)
    except pydantic.ValidationError as error:
        if error.error_count() > MAX_ERRORS:
            message = f"the body has {error.error_count()} fields or items that cannot be, too many to list"
            raise RequestError([Problem(None, message)]) from None
        raise RequestError(list(itertools.islice(wording.problems(error.errors(include_url=False)), MAX_PROBLEMS))) from None


def sampling_params(body: ChatBody | CompletionBody) -> SamplingParams:
    """What the body asks of decoding, with OpenAI's defaults; the ranges are checked by `SamplingParams.problems`."""
    problems: list[Problem] = []
    logprobs = _chat_logprobs(body, problems) if isinstance(body, ChatBody) else body.logprobs
    max_tokens = _chat_max_tokens(body, problems) if isinstance(body, ChatBody) else body.max_tokens
    if max_tokens is None and isinstance(body, CompletionBody):
        max_tokens = DEFAULT_COMPLETION_TOKENS
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        logit_bias=_logit_bias(body, problems),
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logprobs=logprobs,
        **_given(body, "top_k", "top_p", "min_p", "seed", "ignore_eos"),
        **_given(body, "presence_penalty", "frequency_penalty", "repetition_penalty"),
    )
    if body.stream_options is not None and not body.stream:
        problems.append(Problem("stream_options", "stream_options has no meaning unless stream is true"))
    if problems:
        raise RequestError(problems)
    return params


def _json_object(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; the parser refuses invalid UTF-8, lone surrogates, NaN and absurd nesting."""
    mark = next((name for mark, name in BYTE_ORDER_MARKS.items() if raw.startswith(mark)), None)
    if mark is not None:
        message = f"the body begins with the byte order mark of {mark}: send UTF-8 without one"
        raise RequestError([Problem(None, message, "invalid_json")])
    if problem := too_many_parts(raw):
        raise RequestError([problem])
    try:
        data = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError([Problem(None, f"the body is not valid JSON: {error}", "invalid_json")]) from None
    if not isinstance(data, dict):
        raise RequestError([Problem(None, "the body must be a JSON object", "invalid_json")])
    return data


def _without_neutral(
    data: Mapping[str, Any], kind: type[pydantic.BaseModel], neutral: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    def asks_for_nothing(name: str, value: Any) -> bool:
        if name in kind.model_fields:
            return value is None
        return name in neutral and (value is None or value in neutral[name])

    return {name: value for name, value in data.items() if not asks_for_nothing(name, value)}


def _given(body: CommonBody, *names: str) -> dict[str, Any]:
    """The named fields that the request has; the others keep `SamplingParams`'s defaults."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}


def _chat_max_tokens(body: ChatBody, problems: list[Problem]) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens is None:
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if body.max_tokens != body.max_completion_tokens:
        problems.append(Problem("max_tokens", "max_tokens and max_completion_tokens differ: give one of them"))
    return body.max_completion_tokens


def _chat_logprobs(body: ChatBody, problems: list[Problem]) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        problems.append(Problem("top_logprobs", "top_logprobs needs logprobs to be true"))
    return (body.top_logprobs or 0) if body.logprobs else None


def _logit_bias(body: CommonBody, problems: list[Problem]) -> dict[int, float]:
    """OpenAI writes token ids as JSON keys, hence as strings. Only the first problem is told, however many there are."""
    bias: dict[int, float] = {}
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS):
            problems.append(Problem("logit_bias", f"logit_bias: {key[:20]!r} is not a token id"))
            break
        if not -100 <= value <= 100:
            problems.append(Problem("logit_bias", f"logit_bias: {value:g} is not between -100 and 100"))
            break
        bias[int(key)] = value
    return bias
