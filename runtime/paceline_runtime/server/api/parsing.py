"""From the bytes of a request to a checked body and its sampling parameters, or one error that lists every problem.

Pure functions that the routes call. They know neither the model's vocabulary nor its context: `jobs` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pydantic
import pydantic_core

from paceline_runtime.errors import Problem, RequestError
from paceline_runtime.params import SamplingParams
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
MAX_NAME_CHARS = 100
# pydantic reports every branch of a union; a reader wants to know what the field may be.
UNIONS = {
    "prompt": "must be a string, a list of strings, a list of token ids, or a list of lists of token ids",
    "stop": "must be a string or a list of strings",
    "content": "must be a string or a list of parts like {'type': 'text', 'text': ...}; other types are not supported",
    "chat_template_kwargs": "must be an object whose values are strings, numbers and booleans",
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
        raise RequestError(list(_problems(error.errors(include_url=False)))[:MAX_PROBLEMS]) from None


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


def _problems(errors: Iterable[Any]) -> Iterable[Problem]:
    """pydantic's findings as sentences, one per place; all branches of a union are one place."""
    seen = set()
    for error in errors:
        path = [str(part)[:MAX_NAME_CHARS] for part in error["loc"]]
        union = next((position for position, part in enumerate(path) if part in UNIONS), None)
        param = ".".join(path if union is None else path[: union + 1])
        if param not in seen:
            seen.add(param)
            yield _problem(param, error, None if union is None else UNIONS[path[union]])


def _problem(param: str, error: Any, union: str | None) -> Problem:
    if error["type"] == "extra_forbidden":
        return Problem(param, f"{param} is not supported by this server: leave it out", "unsupported_parameter")
    if error["type"] == "missing":
        return Problem(param, f"{param} is required", "missing_required_parameter")
    if union is not None and error["type"] != "missing":
        return Problem(param, f"{param} {union}", "invalid_type")
    return Problem(param, f"{param}: {error['msg'][0].lower()}{error['msg'][1:]}")


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
