"""Where a run is cut: the earliest of stop token, stop string and length; a tie counts as a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.sampling import SamplingParams
from paceline_runtime.scheduler.ends import cut_run, stop_tail_tokens

EOS = frozenset({0})
ALPHABET = " abcdefgh"


def _decode(ids):
    """Token n is the n-th letter; 0, the end-of-text token, is no text."""
    return "".join(ALPHABET[token] for token in ids if token)


def _cut(tail, run, params, max_tokens=99):
    return cut_run(tail, run, params, max_tokens, EOS, _decode)


@pytest.mark.parametrize(
    ("run", "params", "max_tokens", "expected"),
    [
        ([1, 2, 3], SamplingParams(), 99, (3, None, None)),
        ([1, 0, 3], SamplingParams(), 99, (2, "stop", None)),
        ([1, 0, 3], SamplingParams(ignore_eos=True), 99, (3, None, None)),
        ([1, 5, 3], SamplingParams(stop_token_ids=(5,)), 99, (2, "stop", None)),
        ([1, 2, 3], SamplingParams(), 2, (2, "length", None)),
        ([1, 0, 3], SamplingParams(), 2, (2, "stop", None)),
        ([1, 2, 3], SamplingParams(stop=("b",)), 2, (2, "stop", "b")),
        ([1, 2, 3], SamplingParams(stop=("bc",)), 2, (2, "length", None)),
        ([3, 1, 2], SamplingParams(stop=("bc", "ab")), 99, (3, "stop", "ab")),
        ([1, 2, 3], SamplingParams(stop=("c", "bc")), 99, (3, "stop", "bc")),
        ([2, 0], SamplingParams(stop=("zb",)), 99, (2, "stop", None)),
    ],
)
def test_the_earliest_end_wins(run, params, max_tokens, expected):
    """Each way to end, and their ties."""
    cut = _cut([], run, params, max_tokens)

    assert expected == (cut.num_tokens, cut.reason, cut.stop_text)


def test_a_stop_string_may_begin_in_earlier_steps():
    """The tail of committed tokens is part of the text that is searched."""
    assert (1, "stop", "abc") == tuple(vars_of(_cut([1, 2], [3, 4], SamplingParams(stop=("abc",)))))


def vars_of(cut):
    return cut.num_tokens, cut.reason, cut.stop_text


@given(
    ids=st.lists(st.integers(0, 8), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 8), min_size=40, max_size=40),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    limit=st.integers(1, 45),
)
def test_the_end_does_not_depend_on_how_tokens_come_in_runs(ids, sizes, stops, limit):
    """Cutting run by run, each with only its short tail, ends where token by token with the whole text would."""
    params = SamplingParams(stop=tuple(stops))
    expected = None
    for count in range(1, len(ids) + 1):
        text = _decode(ids[:count])
        if ids[count - 1] == 0 or any(stop in text for stop in stops):
            expected = (count, "stop")
        elif count == limit:
            expected = (count, "length")
        if expected:
            break
    done = []
    found = None
    for size in sizes:
        run = ids[len(done) : len(done) + size]
        if not run or found:
            break
        tail = done[max(0, len(done) - stop_tail_tokens(params)) :]
        cut = _cut(tail, run, params, limit - len(done))
        done += run[: cut.num_tokens]
        found = (len(done), cut.reason) if cut.reason else None

    assert expected == found
