"""How much a body may hold, asked before anything in it is looked at: to build or check a million items would take seconds.

`parsing` calls it. Its functions are pure; they know the shape of JSON and the API's limits, not what the fields mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline_runtime.errors import Problem
from paceline_runtime.params import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from paceline_runtime.server.api.bodies import MAX_CHOICES

MAX_PARTS = 1 << 17
"""Lists, objects and fields of a body, at any depth: about 43,000 messages."""
MAX_TEMPLATE_VARIABLES = 100
_LIMITS = {
    "stop": (MAX_STOP_STRINGS, "strings"),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, "tokens"),
    "logit_bias": (MAX_LOGIT_BIAS, "tokens"),
    "chat_template_kwargs": (MAX_TEMPLATE_VARIABLES, "variables"),
}


def too_many_parts(raw: bytes) -> Problem | None:
    """What is wrong with a body of too many lists, objects and fields."""
    if _num_parts(raw) <= MAX_PARTS or _num_parts(_without_strings(raw)) <= MAX_PARTS:
        return None
    return Problem(None, f"the body holds more than {MAX_PARTS} lists, objects and fields: send fewer messages in a request")


def too_many_items(fields: Mapping[str, Any], most_tokens: int | None) -> Iterator[Problem]:
    """A problem for each field with more items than it may have; no prompt has more ids than `most_tokens`."""
    for name, (most, items) in _LIMITS.items():
        if isinstance(value := fields.get(name), list | dict) and len(value) > most:
            yield Problem(name, f"{name} holds more than {most} {items}")
    prompts = fields.get("prompt")
    if not isinstance(prompts, list) or not prompts:
        return
    is_one = type(prompts[0]) is int
    if not is_one and len(prompts) > MAX_CHOICES:
        yield Problem("prompt", f"prompt holds more than {MAX_CHOICES} prompts")
    elif most_tokens is not None:
        named = {"prompt": prompts} if is_one else {f"prompt.{at}": ids for at, ids in enumerate(prompts)}
        for name, ids in named.items():
            if isinstance(ids, list) and len(ids) > most_tokens:
                message = f"the context holds {most_tokens} tokens, but {name} has {len(ids)}: shorten it"
                yield Problem(name, message, "context_length_exceeded")


def _without_strings(raw: bytes) -> bytes:
    """By splitting, at the quotes that are no escaped ones: a regular expression takes three times as long."""
    return b"".join(raw.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def _num_parts(raw: bytes) -> int:
    return sum(map(raw.count, (b"[", b"{", b":")))
