"""What is wrong with a body is told in words of ours, for each place once, with the index of the item that it is."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.errors import RequestError
from paceline_runtime.params import MAX_STOP_STRING_CHARS, SamplingParams
from paceline_runtime.server.api.bodies import ChatBody, CompletionBody, RebuildBody
from paceline_runtime.server.api.parsing import MAX_PROBLEMS, parse

TEXT, IMAGE = {"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:"}}
PROMPT = "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids"


def _told(kind, fields):
    body = {"model": "m", **({"prompt": "x"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "x"}]})}
    with pytest.raises(RequestError) as refusal:
        parse(json.dumps(fields if kind is RebuildBody else body | fields).encode(), kind)
    return [problem.message for problem in refusal.value.problems]


@pytest.mark.parametrize(
    ("kind", "fields", "messages"),
    [
        (CompletionBody, {"prompt": ["a", "b", 5]}, ["prompt.2 must be a string"]),
        (CompletionBody, {"prompt": [1, 2, "a"]}, ["prompt.2 must be a whole number"]),
        (CompletionBody, {"prompt": [[1], [2, None]]}, ["prompt.1.1 must be a whole number"]),
        (CompletionBody, {"prompt": [[1], []]}, ["prompt.1 must not be empty"]),
        (CompletionBody, {"prompt": [[]]}, ["prompt.0 must not be empty"]),
        (CompletionBody, {"prompt": [{}]}, [PROMPT]),
        (CompletionBody, {"prompt": {}}, [PROMPT]),
        (CompletionBody, {"stop": ["a", 5]}, ["stop.1 must be a string"]),
        (CompletionBody, {"stop": [5]}, ["stop.0 must be a string"]),
        (CompletionBody, {"stop": 5}, ["stop must be a string or a list of strings"]),
        (CompletionBody, {"stop_token_ids": [1, "a"]}, ["stop_token_ids.1 must be a whole number"]),
        (CompletionBody, {"temperature": "x", "n": 0}, ["n must be at least 1", "temperature must be a number"]),
        (CompletionBody, {"stream": 1, "n": 1000}, ["n must be at most 128", "stream must be true or false"]),
        (ChatBody, {"messages": []}, ["messages must not be empty"]),
        (ChatBody, {"messages": [5]}, ["messages.0 must be an object"]),
        (ChatBody, {"messages": {}}, ["messages must be a list"]),
        (ChatBody, {"messages": [{"role": "king", "content": "x"}]}, [
            "messages.0.role must be 'system', 'developer', 'user' or 'assistant'"]),
        (ChatBody, {"messages": [{"role": "user", "content": 5}]}, [
            "messages.0.content must be a string or a list of parts like {'type': 'text', 'text': ...}"]),
        (ChatBody, {"messages": [{"role": "user", "content": [TEXT, IMAGE, "x", {**TEXT, "cache": 1}, {"type": "text"}]}]}, [
            "messages.0.content.1.type must be 'text'",
            "messages.0.content.2 must be an object",
            "messages.0.content.3.cache is not supported by this server: leave it out",
            "messages.0.content.4.text is required"]),
        (ChatBody, {"chat_template_kwargs": {"a": 1, "b": [1]}}, [
            "chat_template_kwargs.b must be a string, a number, true or false"]),
        (ChatBody, {"chat_template_kwargs": []}, ["chat_template_kwargs must be an object"]),
        (ChatBody, {"stream_options": 5}, ["stream_options must be an object"]),
        (ChatBody, {"cache_salt": "x" * 2000}, ["cache_salt must have at most 1024 characters"]),
        (RebuildBody, {"num_pages": 2**63}, [f"num_pages must be less than {2**63}"]),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_a_problem_is_told_at_its_place(kind, fields, messages):
    """And nothing else is: what a list of texts is not as a list of ids helps nobody."""
    assert messages == _told(kind, fields)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["text", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "role", "content"]), inner),
    max_leaves=12,
)


@given(st.sampled_from([ChatBody, CompletionBody]), st.data())
def test_whatever_is_wrong_is_told_in_our_words_once_for_each_place(kind, data):
    """None of the library's, and no name of a type of ours."""
    names = st.sampled_from([*kind.model_fields, "tools", "unknown"])
    fields = data.draw(st.dictionaries(names, values, min_size=1))
    try:
        parse(json.dumps({"model": "m", **fields}).encode(), kind)
    except RequestError as refusal:
        told = [problem.message for problem in refusal.problems]
        places = [problem.param for problem in refusal.problems]
        assert not re.search(r"[Ii]nput|valid (string|integer|list)|instance|TextPart|list\[|cannot be this", " ".join(told))
        assert all(place is None or message.startswith(place) for place, message in zip(places, told, strict=True))
        assert len(set(places)) == len(places) <= MAX_PROBLEMS


@pytest.mark.parametrize(
    ("mark", "name"),
    [("utf-8-sig", "UTF-8"), ("utf-16", "UTF-16"), ("utf-32", "UTF-32")],
)
def test_a_byte_order_mark_is_named(mark, name):
    """Some editors put one before all; the JSON parser would speak of an unexpected value."""
    raw = json.dumps({"model": "m", "prompt": "x"}).encode(mark)
    with pytest.raises(RequestError, match=f"byte order mark of {name}: send UTF-8 without one") as refusal:
        parse(raw, CompletionBody)

    assert "invalid_json" == refusal.value.problems[0].code


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        (("a", "b", ""), "must not hold an empty string, as item 2 is"),
        (("", "b"), "must not hold an empty string, as item 0 is"),
        (("a", "x" * (MAX_STOP_STRING_CHARS + 1)), "must hold no string of more than 512 characters, as item 1 is"),
    ],
)
def test_the_stop_string_that_cannot_be_is_told_by_its_index(stops, message):
    """Of sixteen, one is hard to find."""
    assert [("stop", message)] == SamplingParams(stop=stops).problems()
    assert [] == SamplingParams(stop=("a", "x" * MAX_STOP_STRING_CHARS)).problems()
