"""Where a run is cut: the earliest of stop token, stop string and length; a tie counts as a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.params import SamplingParams
from paceline_runtime.scheduler.ends import cut_run
from paceline_runtime.text.stream import TextStream

EOS = frozenset({0})
ALPHABET = " abcdefgh"


def _decode(ids):
    """Token n is the n-th letter; 0, the end-of-text token, is no text."""
    return "".join(ALPHABET[token] for token in ids if token)


def _text(params, prompt=()):
    return TextStream(_decode, prompt, params.stop) if params.stop else None


def _cut(run, params, max_tokens=99):
    return cut_run(run, params, max_tokens, EOS, _text(params))


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
    cut = _cut(run, params, max_tokens)

    assert expected == (cut.num_tokens, cut.reason, cut.stop_text)


def test_a_stop_string_may_begin_in_earlier_steps():
    """The text goes on from run to run."""
    params = SamplingParams(stop=("abc",))
    text = _text(params)
    cuts = [cut_run(run, params, 99, EOS, text) for run in ([1, 2], [3, 4])]

    assert [(2, None), (1, "abc")] == [(cut.num_tokens, cut.stop_text) for cut in cuts]


def test_a_stop_string_never_begins_in_the_prompt():
    """What the answer completes of the prompt's text is not a stop, its own text is."""
    params = SamplingParams(stop=("ab",))
    text = _text(params, prompt=[2, 1])

    assert cut_run([2, 3], params, 99, EOS, text).reason is None
    assert "ab" == cut_run([1, 2], params, 99, EOS, text).stop_text


@pytest.mark.parametrize(("stops", "expected"), [(["cdef", "de"], "de"), (["d", "bcd", "cd"], "bcd"), (["f", "abc"], "abc")])
def test_of_several_stops_in_one_token_the_first_to_be_complete_counts(stops, expected):
    """A token of many characters may hold several: the one that ends first, and of those the longest."""
    params = SamplingParams(stop=tuple(stops))
    text = TextStream(lambda ids: "abcdefgh" * len(ids), [], stops)

    assert expected == cut_run([1], params, 99, EOS, text).stop_text


def test_a_leading_space_is_part_of_a_stop_string():
    """Tokenizers that strip it from a first token would else hide the stop from the engine, and let it run on."""
    params = SamplingParams(stop=(" a",))
    text = TextStream(lambda ids: "".join(" " + ALPHABET[token] for token in ids).lstrip(), [2], params.stop)

    cut = cut_run([1, 3], params, 99, EOS, text)

    assert (1, " a") == (cut.num_tokens, cut.stop_text)


@given(
    ids=st.lists(st.integers(0, 8), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 8), min_size=40, max_size=40),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    limit=st.integers(1, 45),
)
def test_the_end_does_not_depend_on_how_tokens_come_in_runs(ids, sizes, stops, limit):
    """Cutting run by run ends where token by token with the whole text would."""
    params = SamplingParams(stop=tuple(stops))
    text_so_far = _text(params)
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
        cut = cut_run(run, params, limit - len(done), EOS, text_so_far)
        done += run[: cut.num_tokens]
        found = (len(done), cut.reason) if cut.reason else None

    assert expected == found
