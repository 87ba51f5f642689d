"""Speculative text of hybrid targets equals plain text, token for token in float64, and each thing it survives did happen."""

from collections import Counter

import pytest
import torch
from hybrid_models import HYBRIDS, save_hybrid
from law_engine import CyclingDepth, make_engine, plain_tokens, record_plans, run
from law_prompts import law_prompts
from scripted_proposers import KnowingProposer

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import VerifyBatch
from paceline_runtime.layers.experts import Experts
from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Rebuild, Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

VOCAB_SIZE = 64
MAX_TOKENS = 60
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.9, top_k=8, top_p=0.9, seed=7, ignore_eos=True)
LAGS = pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])


@pytest.fixture(scope="module", params=HYBRIDS)
def target(request, tmp_path_factory):
    """At this scale its text is neither a loop nor noise, so every accept length occurs."""
    layers = ["linear_attention", "full_attention", "linear_attention"]
    fields = dict(num_hidden_layers=3, layer_types=layers, vocab_size=VOCAB_SIZE, scale=0.12, max_position_embeddings=4096)
    return load_target(save_hybrid(request.param, tmp_path_factory.mktemp("tiny"), **fields), dtype=torch.float64)


PROMPTS = law_prompts(3, range(2, VOCAB_SIZE), short=5, page=64, sampled=70, aborted=30, other=50)
WAVES = (("long", "short", "sampled", "aborted", "page"), ("parted", "long", "other", "sampled", "short"))


@pytest.fixture(scope="module")
def plain(target):
    """Plain text of every greedy prompt."""
    return {name: plain_tokens(target, ids, MAX_TOKENS) for name, ids in PROMPTS.items() if name != "sampled"}


def make_proposer(kind, steps, plain):
    """None, prompt lookup, or one that knows the plain text and drafts 0..k right tokens of it."""
    if kind == "off":
        return None
    if kind == "ngram":
        return NgramProposer(steps)
    proposer = KnowingProposer(steps, VOCAB_SIZE)
    proposer.know({PROMPTS[name][0]: PROMPTS[name] + text for name, text in plain.items() if name != "parted"})
    return proposer


@LAGS
@pytest.mark.parametrize("kind,steps", [("off", 0), *((kind, steps) for kind in ("ngram", "knowing") for steps in (1, 3, 7))])
def test_speculative_text_equals_plain_text(target, plain, kind, steps, overlap):
    """With hits, chunks, preemptions, aborts and sampled rows beside it."""
    options = dict(num_pages=8, max_prefill_tokens=100, decode_prefill_tokens=64)
    engine = make_engine(target, make_proposer(kind, steps, plain), overlap=overlap, **options)
    plans = record_plans(engine)
    accepted, hits, sampled_texts = Counter(), Counter(), []
    for wave in WAVES:
        requests = {name: (PROMPTS[name], SAMPLED if name == "sampled" else GREEDY) for name in wave}
        answers = run(engine, requests, aborts={"aborted": 9} if "aborted" in wave else None)
        engine.executor.memory.states.check_integrity()
        for name, answer in answers.items():
            accepted.update(answer.accepted)
            hits[answer.cached_tokens] += 1
            if name == "sampled":
                sampled_texts.append(answer.token_ids)
            elif name == "aborted":
                assert plain[name][: len(answer.token_ids)] == answer.token_ids
            else:
                assert plain[name] == answer.token_ids, name

    wanted = {0, 1} if kind == "ngram" else set(range(steps + 1))
    assert wanted <= set(accepted), "an accept length never occurred"
    assert engine.scheduler.num_preemptions > 0
    assert any(hits[cached] for cached in hits if cached), "no prompt was found in the cache"
    assert any(not chunk.is_last for plan in plans for chunk in plan.prefill), "no prompt was cut into chunks"
    assert any(plan.decode and plan.prefill for plan in plans), "no chunk ran beside a decode"
    assert max(len(plan.decode) for plan in plans) > 1, "nothing was batched"
    assert any(chunk.snapshots for plan in plans for chunk in plan.prefill), "no prefill wrote a snapshot"
    assert sampled_texts[0] == sampled_texts[1], "a sampled request beside others, or after a hit, got another text"


@LAGS
@pytest.mark.parametrize("num_requests", [1, 2, 5, 8])
def test_the_number_of_requests_changes_no_text(target, plain, num_requests, overlap):
    """One to eight requests at once, full drafts of seven."""
    names = [name for name in PROMPTS if name not in ("sampled", "aborted")]
    engine = make_engine(target, make_proposer("knowing", 7, plain), overlap=overlap, max_running_req=num_requests)
    requests = {f"{name}-{copy}": (PROMPTS[name], GREEDY) for copy in range(2) for name in names}
    answers = run(engine, dict(list(requests.items())[:num_requests]))
    for name, answer in answers.items():
        assert plain[name.split("-")[0]] == answer.token_ids


@LAGS
def test_a_verify_of_changing_width_changes_no_text(target, plain, overlap):
    """Adaptive depth shortens the verify from step to step: journals are as long as the last one was."""
    engine = make_engine(target, make_proposer("knowing", 7, plain), overlap=overlap)
    engine._depth = CyclingDepth(7)
    plans = record_plans(engine)
    answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "short", "page", "other")})
    assert {name: plain[name] for name in answers} == {name: answer.token_ids for name, answer in answers.items()}
    assert set(range(8)) == {plan.depth for plan in plans if plan.decode}


def test_drafts_that_nobody_verifies_are_inert(target, monkeypatch):
    """Rows past a request's verified drafts write their K/V to the dummy page, and routers are told of them."""
    engine, seen, limit = make_engine(target, NgramProposer(3), max_model_len=256), [], 256
    forward, launch, route = target.forward, engine.executor.launch, Experts.route

    def recorded_forward(batch, *others):
        seen.append((batch, []))
        return forward(batch, *others)

    def recorded_route(mixture, x, active):
        seen[-1][1].append(active)
        return route(mixture, x, active)

    def checked(plan):
        seen.clear()
        handle = launch(plan)
        verified = torch.tensor([row.num_drafted for row in handle.read().decode])
        for batch, routed in seen:
            if isinstance(batch, VerifyBatch):
                expected = (torch.arange(batch.width) <= verified[:, None]).flatten()
                assert torch.equal(batch.active, expected)
                assert torch.equal(batch.cells >= PAGE_TOKENS, expected)
                num_inert["unverified"] += int((~expected).sum())
                num_inert["past the context"] += int((batch.lengths + batch.width > limit).sum())
            assert len(routed) == (3 if target.facts.family == "qwen3_5_moe" else 0)
            assert all(torch.equal(active, batch.active) for active in routed)
        return handle

    num_inert = Counter()
    monkeypatch.setattr(target, "forward", recorded_forward)
    monkeypatch.setattr(Experts, "route", recorded_route)
    engine.executor.launch = checked
    full = {"full": (PROMPTS["long"], SamplingParams(max_tokens=None, ignore_eos=True))}
    run(engine, full | {name: (PROMPTS[name], GREEDY) for name in ("short", "page")})
    assert 0 < num_inert["past the context"] < num_inert["unverified"]


@pytest.mark.parametrize("kind", ["off", "knowing"])
def test_a_rebuilt_cache_repeats_the_text(target, plain, kind):
    """Other sizes of pages and state slots while idle: everything cached is lost, nothing else."""
    engine = make_engine(target, make_proposer(kind, 7, plain), overlap=True)
    requests = {name: (PROMPTS[name], GREEDY) for name in ("long", "page", "other")}
    for pages, slots, hit in ((None, None, 0), (None, None, 128), (12, 9, 0), (12, 9, 128), (20, 25, 0)):
        if pages and hit == 0:
            assert engine.rebuild(Rebuild(num_pages=pages, num_state_slots=slots)).error is None
            assert slots + 1 == engine.executor.memory.states.num_slots
        answers = run(engine, requests)
        assert {name: plain[name] for name in answers} == {name: answer.token_ids for name, answer in answers.items()}
        assert hit == answers["long"].cached_tokens


def turn_after(target, engine, prompt, max_tokens, *, num_generation_prompt=0):
    """Run a prompt to its end and return the text of prompt and answer."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    submit = Submit(request_id="first", prompt_ids=prompt, params=params, num_generation_prompt=num_generation_prompt)
    assert engine.add(submit) is None
    tokens = []
    while engine.has_work:
        tokens += [token for out in engine.step() for token in out.token_ids]
        engine.check_integrity()
    return prompt + tokens


def continued(target, engine, prompt, max_tokens=20):
    """Cached tokens of a prompt, whose text is checked against plain text."""
    answer = run(engine, {"next": (prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))})["next"]
    assert plain_tokens(target, prompt, max_tokens) == answer.token_ids
    return answer.cached_tokens


@LAGS
@pytest.mark.parametrize("num_tokens", [3, 15, 17, 64, 79, 130])
def test_a_finished_answer_is_hit_at_its_deepest_boundary(target, num_tokens, overlap):
    """The snapshot that a decode step wrote, or the one that the flush at the finish did."""
    engine = make_engine(target, NgramProposer(3), overlap=overlap)
    text = turn_after(target, engine, PROMPTS["other"], num_tokens)
    boundary = (len(text) - 1) // 64 * 64
    assert boundary == continued(target, engine, [*text, 5, 6, 7])


def test_a_next_turn_without_the_generation_prompt_hits_before_it(target):
    """The rendering of the next turn drops the end of the prompt and all of the answer; the prompt itself hits deeper."""
    prompt = (PROMPTS["long"] + PROMPTS["page"])[:131]
    engine = make_engine(target, NgramProposer(3))
    turn_after(target, engine, prompt, 10, num_generation_prompt=5)
    assert 64 == continued(target, engine, [*prompt[:126], 9, 9, 9])
    assert 128 == continued(target, engine, prompt)


def test_a_shared_beginning_is_hit_by_the_third_prompt_that_has_it(target):
    """The second finds K/V deeper than any snapshot, and leaves a snapshot at that boundary."""
    engine, shared = make_engine(target), PROMPTS["long"][:80]
    ends = [[3] * 70, [4] * 70, [5] * 70]
    assert [0, 0, 64] == [continued(target, engine, shared + end) for end in ends]


def test_the_same_prompt_again_is_hit(target):
    """At the last boundary before its end."""
    engine = make_engine(target, NgramProposer(3))
    assert [0, 128] == [continued(target, engine, PROMPTS["long"]) for _ in range(2)]


def test_a_long_answer_is_hit_at_its_end_and_at_what_it_kept_on_the_way(target):
    """After 2,400 decoded tokens: two snapshots alternate behind the text, earlier ones have made room."""
    engine = make_engine(target, NgramProposer(3), max_model_len=2560, overlap=True)
    text = turn_after(target, engine, PROMPTS["other"], 2400)
    assert 2432 == continued(target, engine, [*text, 5, 6, 7], 2)
    assert 2368 == continued(target, engine, [*text[:2420], 5, 6, 7], 2)
    assert 0 == continued(target, engine, [*text[:1000], 5, 6, 7], 2)


@LAGS
def test_a_preempted_request_goes_on_from_its_snapshots(target, plain, overlap):
    """Its text is the plain one, and it did not compute its whole prompt again."""
    engine = make_engine(target, make_proposer("knowing", 3, plain), overlap=overlap, num_pages=6, max_model_len=384)
    plans = record_plans(engine)
    answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "parted")})
    assert {name: plain[name] for name in answers} == {name: answer.token_ids for name, answer in answers.items()}
    again = [start for plan in plans for start in plan.starts if len(start.tokens) > start.num_prompt]
    assert any(start.restore_slot and start.num_cached for start in again)


def test_an_aborted_request_leaves_its_prompt_snapshot(target, plain):
    """What it had published is hit by the next one with the same beginning."""
    engine = make_engine(target, make_proposer("knowing", 3, plain), overlap=True)
    run(engine, {"long": (PROMPTS["long"], GREEDY)}, aborts={"long": 5})
    answer = run(engine, {"again": (PROMPTS["long"], GREEDY)})["again"]
    assert (128, plain["long"]) == (answer.cached_tokens, answer.token_ids)


def test_naive_cache_never_hits(target):
    """`cache_type` naive computes every prompt anew, and right."""
    engine = make_engine(target, NgramProposer(3), cache_type="naive")
    assert [0, 0] == [continued(target, engine, PROMPTS["long"]) for _ in range(2)]
