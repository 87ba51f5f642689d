"""What pydantic finds wrong with a body, as sentences that name the field, the item of a list, and the remedy.

Called by `parsing`. Pure functions of pydantic's errors; they know the names of fields, nothing of their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from paceline_runtime.errors import Problem

MAX_NAME_CHARS = 100
_UNIONS = {
    "prompt": (1, "must be a string, a list of strings, a list of token ids, or a list of lists of token ids"),
    "stop": (1, "must be a string or a list of strings"),
    "messages": (3, "must be a string or a list of parts like {'type': 'text', 'text': ...}"),
    "chat_template_kwargs": (2, "must be a string, a number, true or false"),
}
"""Fields that are one thing or another: what they may be, and how deep that stands. pydantic tells what is wrong with a value
for each thing that it is not, under a name of its own."""
_SENTENCES = {
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}


def problems(errors: Iterable[Any]) -> Iterator[Problem]:
    """One for each place, in the body's order."""
    for _, of_one_value in groupby(errors, _value):
        yield from _problems_of(list(of_one_value))


def _value(error: Any) -> Sequence[Any]:
    """The path of the value that is wrong, as far as pydantic makes one thing of it."""
    path: tuple[Any, ...] = error["loc"]
    depth, _ = _UNIONS.get(path[0], (len(path), ""))
    return path[:depth] if len(path) > depth else path


def _problems_of(errors: list[Any]) -> Iterator[Problem]:
    """Of a value that may be one thing or another: what is wrong with it as that which goes furthest before it is wrong."""
    value = _value(errors[0])
    if len(value) == len(errors[0]["loc"]):
        yield from map(_problem, errors, [value] * len(errors))
        return
    furthest = max(_progress(error, value) for error in errors)
    named = {error["loc"][len(value)] for error in errors if _progress(error, value) == furthest}
    if not furthest[0] or len(named) > 1:
        yield Problem(_name(value), f"{_name(value)} {_UNIONS[value[0]][1]}", "invalid_type")
        return
    is_told = set[Any]()
    for error in errors:
        path = error["loc"][len(value) + 1 :]
        if error["loc"][len(value)] not in named:
            continue
        if path[:1] not in is_told:
            yield _problem(error, [*value, *path])
        if error["type"] == "literal_error":  # of a part of another type, the other fields are right as they are
            is_told.add(path[:1])


def _progress(error: Any, value: Sequence[Any]) -> tuple[Any, ...]:
    """How far the value was right as that which the error takes it for: up to which item, how deep, and of the right type."""
    path = error["loc"][len(value) + 1 :]
    return path[:1], len(path), not error["type"].endswith("_type")


def _problem(error: Any, path: Sequence[Any]) -> Problem:
    name, kind = _name(path), error["type"]
    if kind == "extra_forbidden":
        return Problem(name, f"{name} is not supported by this server: leave it out", "unsupported_parameter")
    if kind == "missing":
        return Problem(name, f"{name} is required", "missing_required_parameter")
    sentence = _SENTENCES.get(kind, "cannot be this").format(**error.get("ctx") or {})
    return Problem(name, f"{name} {sentence}", "invalid_type" if kind.endswith("_type") else "invalid_value")


def _name(path: Sequence[Any]) -> str:
    return ".".join(str(part)[:MAX_NAME_CHARS] for part in path)
