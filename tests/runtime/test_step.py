"""A plan survives its bytes, and a batch's variant asks for neither less nor more than its rows do."""

from hypothesis import given
from hypothesis import strategies as st

from paceline_runtime.params import SamplingParams
from paceline_runtime.step import (
    SMALL_TOP_K,
    DecodeRow,
    Flush,
    PageChange,
    PrefillRow,
    Start,
    StepPlan,
    Variant,
    decode_plan,
    encode_plan,
)

PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(1, 100),
    temperature=st.sampled_from([0.0, 1e-3, 0.7, 100.0]),
    top_k=st.sampled_from([0, 1, 5, SMALL_TOP_K, SMALL_TOP_K + 1]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, 2**31), st.floats(-1e30, 1e30), max_size=3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.tuples() | st.tuples(st.text(min_size=1)),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
NUMBERS = st.integers(0, 2**31)
TUPLES = st.lists(NUMBERS, max_size=4).map(tuple)
KEYS = st.integers(-(2**63), 2**63 - 1)
STARTS = st.builds(Start, NUMBERS, PARAMS, KEYS, NUMBERS, TUPLES, NUMBERS, TUPLES, NUMBERS, NUMBERS)
SNAPSHOTS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2).map(tuple)
PLANS = st.builds(
    StepPlan,
    number=NUMBERS,
    flushes=st.lists(st.builds(Flush, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=2).map(tuple),
    released=TUPLES,
    starts=st.lists(STARTS, max_size=3).map(tuple),
    pages=st.lists(st.builds(PageChange, NUMBERS, NUMBERS, TUPLES), max_size=2).map(tuple),
    decode=st.lists(st.builds(DecodeRow, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
    prefill=st.lists(
        st.builds(PrefillRow, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans(), NUMBERS, SNAPSHOTS), max_size=2
    ).map(tuple),
    depth=st.integers(0, 7),
    decode_variant=PARAMS.map(Variant.of),
    draw_variant=PARAMS.map(Variant.of),
)


@given(PLANS)
def test_a_plan_survives_its_bytes(plan):
    """Every field of every part, extreme seeds and biases included."""
    assert plan == decode_plan(encode_plan(plan))


@given(st.lists(PARAMS, max_size=5))
def test_a_variant_covers_its_rows(rows):
    """Bounded only where every sampled row is; all of what any row needs, and nothing that none does."""
    sampled = [params for params in rows if not params.is_greedy]
    limits = [params.top_k for params in sampled]
    is_bounded = bool(limits) and min(limits) > 0 and max(limits) <= SMALL_TOP_K

    assert Variant.together(map(Variant.of, rows)) == Variant(
        is_sampled=bool(sampled),
        support=max(limits) if is_bounded else 0,
        has_penalties=any(params.has_penalties for params in rows),
        num_biases=max((len(params.logit_bias) for params in rows), default=0),
        num_logprobs=max((params.logprobs for params in rows if params.logprobs is not None), default=None),
    )
