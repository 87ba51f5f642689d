"""Speculative text equals plain text, token for token in float64, whatever else happens; and each thing did happen."""

from collections import Counter

import pytest
from law_engine import make_engine, plain_tokens, record_plans, run
from law_prompts import law_prompts
from scripted_proposers import KnowingProposer

from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

VOCAB_SIZE = 64
MAX_TOKENS = 44


PROMPTS = law_prompts(3, range(2, VOCAB_SIZE), short=5, page=64, sampled=70, penalized=20, biased=33, aborted=30, stopped=12)
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
PENALTIES = dict(presence_penalty=0.5, frequency_penalty=0.4, repetition_penalty=1.2)
PARAMS = {
    "sampled": SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, top_k=8, top_p=0.9, min_p=0.02, seed=7, ignore_eos=True),
    "penalized": SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, **PENALTIES),
    "biased": SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logit_bias={3: 4.0, 9: -50.0}),
}
WAVES = (("long", "short", "sampled", "aborted", "page"), ("parted", "penalized", "biased", "long", "stopped", "sampled"))


def _adjust(name):
    """The plain counterpart of penalties and bias, one row at a time."""
    params = PARAMS.get(name)

    def adjust(logits, text, num_prompt):
        logits = logits.clone()
        outputs = Counter(text[num_prompt:])
        for token in set(text):
            factor = params.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        for token, times in outputs.items():
            logits[token] -= params.frequency_penalty * times + params.presence_penalty
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        return logits

    return adjust if params else None


@pytest.fixture(scope="module")
def plain(target):
    """Plain text of every greedy prompt, and the stop token of the one that stops inside a run."""
    return {
        name: plain_tokens(target, ids, MAX_TOKENS, adjust=_adjust(name)) for name, ids in PROMPTS.items() if name != "sampled"
    }


def _params(name, plain):
    if name == "stopped":
        return SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, stop_token_ids=(plain["stopped"][20],))
    return PARAMS.get(name, GREEDY)


def _expected(name, plain):
    text = plain[name]
    return text[: text.index(text[20]) + 1] if name == "stopped" else text


def _proposer(kind, steps, plain):
    if kind == "ngram":
        return NgramProposer(steps)
    proposer = KnowingProposer(steps, VOCAB_SIZE, spread={"point": 0, "spread": 5}[kind])
    proposer.know({PROMPTS[name][0]: PROMPTS[name] + text for name, text in plain.items() if name != "parted"})
    return proposer


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("kind", ["ngram", "point", "spread"])
def test_speculative_text_equals_plain_text(target, plain, kind, steps, overlap):
    """Hits, chunks, preemptions, aborts, stops, penalties and sampled rows beside it change nothing."""
    engine = make_engine(
        target,
        _proposer(kind, steps, plain),
        overlap=overlap,
        num_pages=8,
        max_prefill_tokens=100,
        decode_prefill_tokens=64,
    )
    plans = record_plans(engine)
    accepted, num_hits = Counter(), 0
    sampled_texts = []
    for wave in WAVES:
        requests = {name: (PROMPTS[name], _params(name, plain)) for name in wave}
        answers = run(engine, requests, aborts={"aborted": 9} if "aborted" in wave else None)
        for name, answer in answers.items():
            accepted.update(answer.accepted)
            num_hits += answer.cached_tokens > 0
            if name == "sampled":
                sampled_texts.append(answer.token_ids)
            elif name == "aborted":
                assert plain[name][: len(answer.token_ids)] == answer.token_ids
            else:
                assert _expected(name, plain) == answer.token_ids, name
                assert answer.finish_reason == ("stop" if name == "stopped" else "length")

    assert set(range(steps + 1)) <= set(accepted), "an accept length never occurred"
    assert engine.scheduler.num_preemptions > 0
    assert num_hits > 0
    assert any(not chunk.is_last for plan in plans for chunk in plan.prefill), "no prompt was cut into chunks"
    assert any(plan.decode and plan.prefill for plan in plans), "no chunk ran beside a decode"
    assert max(len(plan.decode) for plan in plans) > 1, "nothing was batched"
    assert sampled_texts[0] == sampled_texts[1], "a sampled request beside others, or after a hit, got another text"
    alone = make_engine(target, _proposer(kind, steps, plain), overlap=False)
    alone_text = run(alone, {"sampled": (PROMPTS["sampled"], PARAMS["sampled"])})["sampled"].token_ids
    assert sampled_texts[0] == alone_text


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_a_hit_equals_a_miss_and_counts_its_tokens(target, plain, overlap):
    """The second time, a prompt starts from its own published pages, at most (len - 1) / 64 of them."""
    engine = make_engine(target, NgramProposer(3), overlap=overlap)
    first = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    again = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    page = run(engine, {"page": (PROMPTS["page"], GREEDY)})["page"]
    page_again = run(engine, {"page": (PROMPTS["page"], GREEDY)})["page"]

    assert plain["long"] == first.token_ids == again.token_ids
    assert (0, 128) == (first.cached_tokens, again.cached_tokens)
    assert plain["page"] == page.token_ids == page_again.token_ids
    assert 0 == page_again.cached_tokens, "a prompt of one page must keep a token to compute"


def test_generated_tokens_are_cached_for_the_next_turn(target, plain):
    """A prompt that continues an answer starts from the answer's pages."""
    engine = make_engine(target, NgramProposer(3))
    first = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    turn = PROMPTS["long"] + first.token_ids + [5, 6, 7]
    answer = run(engine, {"turn": (turn, GREEDY)})["turn"]

    assert 192 == answer.cached_tokens
    assert plain_tokens(target, turn, MAX_TOKENS) == answer.token_ids


@pytest.mark.parametrize(("num_tokens", "cached"), [(1, 128), (2, 128), (3, 192)])
def test_a_page_that_ends_in_the_pending_token_is_not_cached(target, num_tokens, cached):
    """An answer that ends with a page: the K/V of its last token were never computed."""
    engine = make_engine(target)
    first = run(engine, {"long": (PROMPTS["long"], SamplingParams(max_tokens=num_tokens, ignore_eos=True))})["long"]
    turn = PROMPTS["long"] + first.token_ids + [5, 6, 7]
    answer = run(engine, {"turn": (turn, GREEDY)})["turn"]

    assert 190 + num_tokens == len(turn) - 3
    assert cached == answer.cached_tokens
    assert plain_tokens(target, turn, MAX_TOKENS) == answer.token_ids


def test_naive_cache_never_hits(target, plain):
    """`cache_type` naive computes every prompt anew."""
    engine = make_engine(target, NgramProposer(3), cache_type="naive")
    for _ in range(2):
        answer = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]

        assert plain["long"] == answer.token_ids
        assert 0 == answer.cached_tokens


def test_salted_caches_never_meet(target):
    """The same prompt under another salt is a miss."""
    from paceline_runtime.messages import Submit

    engine = make_engine(target)
    cached = []
    for index, salt in enumerate(["a", "b", "a"]):
        engine.add(Submit(request_id=str(index), prompt_ids=PROMPTS["long"], params=GREEDY, cache_salt=salt))
        while engine.has_work:
            cached += [tokens.cached_tokens for tokens in engine.step() if tokens.finish_reason]

    assert [0, 0, 128] == cached


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("steps", [1, 7])
def test_the_context_ends_where_it_should(target, steps, overlap):
    """A text may fill the context to its last position, with full drafts up to the end, and not a token more."""
    prompt = PROMPTS["short"]
    limit = 64
    expected = plain_tokens(target, prompt, limit - len(prompt))
    proposer = KnowingProposer(steps, VOCAB_SIZE)
    proposer.know({prompt[0]: prompt + expected})
    engine = make_engine(target, proposer, overlap=overlap, max_model_len=limit, num_pages=4)
    answer = run(engine, {"full": (prompt, SamplingParams(max_tokens=None, ignore_eos=True))})["full"]

    assert expected == answer.token_ids
    assert "length" == answer.finish_reason


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_a_preempted_request_may_find_all_it_had_computed_still_cached(target, overlap):
    """It comes back on a page boundary when the other has ended: nothing to prefill, and its text goes on as it was."""
    first, second = [7] * 60, list(range(2, 62)) + [5] * 40
    engine = make_engine(target, overlap=overlap, num_pages=4, max_running_req=2, max_model_len=256)
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (62, 60)]
    answers = run(engine, {"first": (first, params[0]), "second": (second, params[1])})

    assert engine.scheduler.num_preemptions == 1
    assert plain_tokens(target, first, 62) == answers["first"].token_ids
    assert plain_tokens(target, second, 60) == answers["second"].token_ids


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("kind", ["ngram", "point", "spread"])
def test_an_answer_that_is_preempted_is_computed_again_and_its_pending_token_not_redrawn(target, plain, kind, overlap):
    """Greedy and sampled: the text goes on as it would have."""
    requests = {"long": (PROMPTS["long"], GREEDY), "sampled": (PROMPTS["sampled"] * 2, PARAMS["sampled"])}
    options = dict(overlap=overlap, max_model_len=320)
    alone = run(make_engine(target, _proposer(kind, 3, plain), **options), requests)
    engine = make_engine(target, _proposer(kind, 3, plain), num_pages=6, **options)
    plans = record_plans(engine)
    answers = run(engine, requests)

    assert plain["long"] == answers["long"].token_ids
    assert alone["sampled"].token_ids == answers["sampled"].token_ids
    assert any(chunk.is_last and not chunk.samples for plan in plans for chunk in plan.prefill), "no answer was preempted"


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_cuts_inside_a_run(target, plain, max_tokens):
    """Whatever the run's length, exactly `max_tokens` leave, and the acceptance counts only what left."""
    proposer = _proposer("point", 7, plain)
    engine = make_engine(target, proposer, overlap=True)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    answer = run(engine, {"page": (PROMPTS["page"], params)})["page"]

    assert plain["page"][:max_tokens] == answer.token_ids
    assert sum(answer.accepted) <= max_tokens


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_what_a_run_held_past_its_cut_is_not_cached(target, plain, overlap):
    """Text, usage and cache end at the same place: the page that the run would have filled stays unpublished."""
    engine = make_engine(target, _proposer("point", 7, plain), overlap=overlap)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    collect, runs = engine.executor.collect, []
    engine.executor.collect = lambda handle: (result := collect(handle), runs.extend(result.decode))[0]
    answer = run(engine, {"long": (PROMPTS["long"], params)})["long"]

    assert plain["long"][:2] == answer.token_ids
    assert len(PROMPTS["long"]) + len(runs[0].token_ids) > 192, "the run did not reach the page's end"
    assert 2 == len(engine.scheduler.prefix)
