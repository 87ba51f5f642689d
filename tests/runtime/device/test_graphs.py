"""Which steps are captured, and that replays compute what the steps themselves would; CUDA itself is tested on a GPU."""

from __future__ import annotations

import logging
from itertools import count

import pytest
from fake_capture import FakeCapture
from law_engine import MAX_MODEL_LEN, make_engine, run
from law_prompts import law_prompts

from paceline_compat.memory.parts import pages_for
from paceline_runtime.device.graphs import GraphDecoder, graph_buckets
from paceline_runtime.engine.build import assemble
from paceline_runtime.engine.warmup import rehearse
from paceline_runtime.messages import Rebuild
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer
from paceline_runtime.step import SMALL_TOP_K, Variant

NUM_TOKENS = 12
PROMPTS = law_prompts(3, range(2, 64), one=5, two=9, three=70)
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, seed=3)


def graph_engine(target, proposer=None, *, capture=None, max_kinds=128, max_rows=4, **options):
    """An engine whose steps are captured, and the decoder that does so."""
    decoder = GraphDecoder(capture or FakeCapture(), max_kinds=max_kinds)
    buckets = graph_buckets(max_rows, pages_for(MAX_MODEL_LEN))
    return make_engine(target, proposer, decoder=decoder, buckets=buckets, max_running_req=max_rows, **options), decoder


def texts(engine, params=GREEDY, names=("one",)):
    """What each named prompt is answered with."""
    answers = run(engine, {name: (PROMPTS[name], params) for name in names})
    return {name: answer.token_ids for name, answer in answers.items()}


def test_a_step_runs_as_it_is_once_and_is_then_replayed(target) -> None:
    """One request, one kind of step: captured at its second step, replayed from then on."""
    capture = FakeCapture()
    engine, decoder = graph_engine(target, capture=capture)
    expected = texts(make_engine(target))

    assert expected == texts(engine)
    assert 1 == len(capture.captured) == decoder.num_captured
    assert NUM_TOKENS - 2 == capture.captured[0].num_replays  # the prefill drew one token, the first step ran as it is


def test_replays_take_what_stands_at_their_places(target) -> None:
    """Other requests, other lengths, other seats: the same graphs, the texts of engines without any."""
    engine, decoder = graph_engine(target, NgramProposer(3))
    for params in (GREEDY, SAMPLED):
        for names in (("one",), ("two",), ("one", "two", "three"), ("three",), ("two", "three")):
            assert texts(make_engine(target, NgramProposer(3)), params, names) == texts(engine, params, names)
    assert decoder.num_captured >= 4


def test_a_draft_is_captured_once_for_all_depths(target) -> None:
    """The draft is as wide as configured whatever the verify's depth is."""
    capture = FakeCapture()
    engine, decoder = graph_engine(target, NgramProposer(3), capture=capture)
    for depth in (3, 1, 2):
        for _ in range(2):
            engine.executor.rehearse(1, depth, Variant())

    assert 3 == decoder.num_captured
    assert 1 + 3 == len(capture.captured)


def test_kinds_that_ran_longest_ago_are_forgotten(target) -> None:
    """And captured anew when they come back; no more than the bound are kept."""
    capture = FakeCapture()
    engine, decoder = graph_engine(target, capture=capture, max_kinds=2)
    for rows in (1, 1, 2, 2, 3, 3, 1, 1):
        engine.executor.rehearse(rows, 0, Variant())

    assert 4 == len(capture.captured)
    assert 2 == decoder.num_captured


def test_what_cannot_be_captured_runs_as_it_is_and_is_told_once(target, caplog) -> None:
    engine, decoder = graph_engine(target, capture=FakeCapture(refuses=True))
    with caplog.at_level(logging.WARNING):
        assert texts(make_engine(target)) == texts(engine)

    assert 0 == decoder.num_captured
    assert 1 == sum("no CUDA graph of" in record.message for record in caplog.records)


def test_steps_are_steady_once_they_are_replayed(target) -> None:
    """What loading and capturing take says nothing of later steps."""
    engine, decoder = graph_engine(target)
    steady = []
    for _ in range(4):
        engine.executor.rehearse(1, 0, Variant())
        steady.append(decoder.is_steady)

    assert [False, False, True, True] == steady


def test_other_caches_need_other_graphs(target) -> None:
    """A rebuild forgets them all, texts stay the same, and steps are captured anew, in another pool."""
    engine, decoder = graph_engine(target)
    before = texts(engine)
    assert decoder.num_captured == 1

    assert engine.rebuild(Rebuild(num_pages=9)).error is None

    assert decoder.num_captured == 0
    assert before == texts(engine)
    assert decoder.num_captured == 1


def test_a_rehearsal_leaves_no_trace(target) -> None:
    """Nobody's rows: no page, length or text changes, and the answers are those of an engine that did not rehearse."""
    engine, decoder = graph_engine(target, NgramProposer(3))
    rehearse(engine.executor, engine.depths, 4)
    assert decoder.num_captured == 3 * 3  # batches of 1, 2 and 4; greedy, drawn, drawn under a top-k
    assert (engine.executor.seats.lengths == 0).all()
    assert texts(make_engine(target, NgramProposer(3))) == texts(engine)


def test_a_rehearsal_ends_with_its_budget(target) -> None:
    """Each look at the clock costs a second here."""
    engine, decoder = graph_engine(target)
    seconds = count()
    rehearse(engine.executor, engine.depths, 4, budget_s=5.0, clock=lambda: float(next(seconds)))
    assert 2 == decoder.num_captured


def test_a_cpu_engine_captures_nothing_by_itself(target) -> None:
    """Graphs are CUDA's."""
    config = make_engine(target)._resize._config
    assert config.cuda_graphs
    assert assemble(config, target, None).executor._decoder.is_steady


@pytest.mark.parametrize("max_rows", [1, 2, 5, 8, 9, 40, 64, 130])
def test_batches_are_padded_to_few_sizes(max_rows: int) -> None:
    """No size is smaller than its batch or larger than the most, nor padded by more than half or by more than 8 rows."""
    buckets = graph_buckets(max_rows, 7)
    sizes = {buckets.rows(rows) for rows in range(1, max_rows + 1)}
    for rows in range(1, max_rows + 1):
        assert rows <= buckets.rows(rows) <= min(max_rows, max(rows + 7, 1))
        assert buckets.rows(rows) <= 2 * rows
    assert len(sizes) <= 6 + -(-max_rows // 8)
    assert buckets.pages(1) == 7


def test_rounded_variants_do_all_of_the_work_and_are_few() -> None:
    """Whatever a variant asks for is in its rounded one; rounding twice changes nothing."""
    rounded = set()
    for support in (0, 1, 40, SMALL_TOP_K):
        for biases in (0, 1, 300):
            for logprobs in (None, 0, 5, 20):
                one = Variant(support > 0, support, biases > 1, biases, logprobs)
                more = one.rounded()
                assert more.support >= one.support
                assert bool(more.support) == bool(one.support)
                assert more.num_biases >= one.num_biases
                assert (more.num_logprobs is None) == (logprobs is None)
                assert more.num_logprobs is None or more.num_logprobs >= logprobs
                assert more == more.rounded()
                rounded.add(more)
    assert len(rounded) == 2 * 3 * 2
