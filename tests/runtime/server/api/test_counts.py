"""A body of too many items is refused before they are made, checked or copied; what looks like one inside of texts is not."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_tree import ROOT

from paceline_runtime.errors import RequestError
from paceline_runtime.params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOP_LOGPROBS,
)
from paceline_runtime.server.api import counts, parsing
from paceline_runtime.server.api.bodies import MAX_CHOICES, MAX_SALT_CHARS, ChatBody, CompletionBody
from paceline_runtime.server.api.counts import MAX_PARTS, MAX_TEMPLATE_VARIABLES
from paceline_runtime.server.api.parsing import parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
MANY = MAX_PARTS
FIELDS = {f"f{number}": 1 for number in range(MANY)}
BY_PARTS = [
    (ChatBody, {**CHAT, **FIELDS}),
    (ChatBody, {**CHAT, "messages": [{"role": "user", "content": "hi", **FIELDS}]}),
    (ChatBody, {**CHAT, "messages": [{"role": "user", "content": "hi"}] * (MANY // 3 + 1)}),
    (ChatBody, {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (MANY // 3 + 1)}]}),
    (ChatBody, {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "", **FIELDS}]}]}),
    (ChatBody, {**CHAT, "stream_options": FIELDS}),
    (CompletionBody, {**COMPLETION, "stop": [[]] * MANY}),
    (CompletionBody, {**COMPLETION, "prompt": [[1]] * MANY}),
]
BY_ITEMS = [
    (CompletionBody, COMPLETION, "stop", ["x"] * MAX_STOP_STRINGS, ["x"]),
    (CompletionBody, COMPLETION, "stop_token_ids", [1] * MAX_STOP_TOKEN_IDS, [1]),
    (CompletionBody, COMPLETION, "logit_bias", {str(number): 1 for number in range(MAX_LOGIT_BIAS)}, {"9999": 1}),
    (CompletionBody, COMPLETION, "prompt", ["x"] * MAX_CHOICES, ["x"]),
    (CompletionBody, COMPLETION, "prompt", [[1]] * MAX_CHOICES, [[1]]),
    (CompletionBody, COMPLETION, "prompt", [1] * 1000, [1]),
    (CompletionBody, COMPLETION, "prompt", [[1], [1] * 1000], None),
    (CompletionBody, COMPLETION, "cache_salt", "x" * MAX_SALT_CHARS, "x"),
    (ChatBody, CHAT, "chat_template_kwargs", {f"v{number}": 1 for number in range(MAX_TEMPLATE_VARIABLES)}, {"v": 1}),
]


def _raw(body):
    return json.dumps(body).encode()


@pytest.mark.parametrize(("kind", "body"), BY_PARTS)
def test_no_body_of_too_many_parts_is_even_read(monkeypatch, kind, body):
    """A million lists take seconds to make, a million unknown fields to list."""
    monkeypatch.delattr(parsing.pydantic_core, "from_json")
    with pytest.raises(RequestError, match=f"more than {MAX_PARTS} lists, objects and fields"):
        parse(_raw(body), kind)


@pytest.mark.parametrize(("kind", "body", "name", "items", "more"), BY_ITEMS)
def test_a_field_has_as_many_items_as_it_may(kind, body, name, items, more):
    """One more is refused, by the field's name."""
    assert items == getattr(parse(_raw({**body, name: items}), kind, 1000), name)
    too_many = [[1], [1] * 1001] if more is None else {**items, **more} if isinstance(items, dict) else items + more
    with pytest.raises(RequestError) as refusal:
        parse(_raw({**body, name: too_many}), kind, 1000)

    assert ["prompt.1" if more is None else name] == [problem.param for problem in refusal.value.problems]


@pytest.mark.parametrize(("kind", "body", "name", "items", "more"), BY_ITEMS[:-2])
def test_items_are_counted_before_they_are_checked(monkeypatch, kind, body, name, items, more):
    """What nobody looked at cannot have taken long."""
    monkeypatch.setattr(kind, "model_validate", None)
    too_many = [[1] * 1001] if more is None else {**items, **more} if isinstance(items, dict) else items + more
    with pytest.raises(RequestError):
        parse(_raw({**body, name: too_many}), kind, 1000)


@pytest.mark.parametrize("text", ['{"a": [1, {', 'say \\"[{:\\" \\', "[[[", '[\\\\"', "\n:\t", "世[界:"])
def test_what_stands_in_a_text_is_no_part_of_the_body(text):
    """Programs and JSON as prompts are full of brackets."""
    prompt = text * (MAX_PARTS // 2)

    assert len(re.findall(r"[\[{:]", prompt)) > MAX_PARTS // 4
    assert prompt == parse(_raw({**COMPLETION, "prompt": prompt}), CompletionBody).prompt


json_values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='ab[{:"\\\n,]}é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a[{:"\\'), inner),
)


@given(json_values, st.booleans())
def test_parts_are_counted_as_they_are(value, is_ascii):
    """Lists, objects and fields at every depth, whatever the strings between them hold."""

    def num_parts(value):
        if isinstance(value, dict):
            return 1 + len(value) + sum(map(num_parts, value.values()))
        return 1 + sum(map(num_parts, value)) if isinstance(value, list) else 0

    raw = json.dumps(value, ensure_ascii=is_ascii).encode()

    assert num_parts(value) == counts._num_parts(counts._without_strings(raw))


@pytest.mark.parametrize("start", [b"", b'"', b'{"a":"', b"["])
@pytest.mark.parametrize("piece", [b'\\"[', b'"[', b"\\\\[", b'"":[', b"[\\"])
def test_what_is_no_json_is_counted_in_one_go(start, piece):
    """Strings without an end, too: a search from each of their quotes would take hours."""
    raw = start + piece * MANY * 2

    assert counts._num_parts(raw) > MAX_PARTS
    with pytest.raises(RequestError):
        parse(raw, CompletionBody)


def test_no_answer_repeats_a_name_of_a_million_characters():
    """What is told of a field names it by its beginning."""
    with pytest.raises(RequestError) as refusal:
        parse(_raw({**COMPLETION, "x" * 10**6: 1}), CompletionBody)

    assert len(str(refusal.value)) < 300


def test_the_documents_tell_these_limits():
    """As they are."""
    text = (ROOT / "docs/reference.md").read_text()
    table = text.partition("## Limits of a request")[2].partition("## Metrics")[0]
    told = {int(number) for number in re.findall(r"\d+", table.partition("|---|")[2].partition("A text is")[0])}

    limits = {MAX_PARTS, MAX_CHOICES, MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS, MAX_STOP_TOKEN_IDS, MAX_LOGIT_BIAS}
    assert {*limits, MAX_TOP_LOGPROBS, MAX_TEMPLATE_VARIABLES, MAX_SALT_CHARS} == told
