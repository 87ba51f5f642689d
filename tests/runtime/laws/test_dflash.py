"""The laws with the real draft: text and accept lengths of the `dflash` package, and plain text whatever else happens."""

from __future__ import annotations

import time
import warnings
import weakref
from collections import Counter
from types import SimpleNamespace

import dflash.model
import pytest
import torch
from knowing_pairs import VOCAB_SIZE, WINDOW, KnowingPair, knowing_pair
from law_engine import Answer, CyclingDepth, make_engine, plain_tokens, record_plans, run
from law_prompts import law_prompts
from no_reads import watch_launches

from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.engine.core import Engine
from paceline_runtime.messages import Rebuild
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.base import DraftInputs, Proposal

MAX_TOKENS = 60
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=5, ignore_eos=True)
DEPTHS = [1, 3, 7]
LAGS = pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KnowingPair:
    """A target of each dense family and a draft that knows most of its next tokens."""
    return knowing_pair(tmp_path_factory.mktemp(request.param), request.param)


PROMPTS = law_prompts(8, range(VOCAB_SIZE - 1), short=3, page=64, sampled=(70, 20), aborted=30, other=11, third=49)
WAVES = (("long", "short", "sampled", "aborted", "page"), ("parted", "long", "sampled", "other", "third"))


@pytest.fixture(scope="module")
def plain(pair: KnowingPair) -> dict[str, list[int]]:
    """Greedy text of every prompt, recomputed whole for every token."""
    return {name: plain_tokens(pair.target, ids, MAX_TOKENS) for name, ids in PROMPTS.items() if name != "sampled"}


@pytest.fixture(scope="module", params=DEPTHS)
def oracle(request: pytest.FixtureRequest, pair: KnowingPair) -> tuple[int, dict[str, SimpleNamespace]]:
    """A depth, and the package's own generation at that depth for every prompt, one by one, with its accept lengths."""
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), warnings.catch_warnings():
        patch.setattr(dflash.model, "_cuda_time", time.perf_counter)
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        return request.param, {
            name: dflash.model.dflash_generate(
                pair.oracle_draft,
                pair.oracle_target,
                torch.tensor([ids]),
                MAX_TOKENS,
                None,
                block_size=request.param + 1,
                return_stats=True,
            )
            for name, ids in PROMPTS.items()
            if name != "sampled"
        }


def full_blocks(lengths: list[int], num_steps: int) -> int:
    """How many of the package's steps ran at full width: it narrows its block where fewer tokens are left to make."""
    made, count = 1, 0
    for length in lengths:
        count += made + num_steps < MAX_TOKENS
        made += length
    return count


@LAGS
def test_text_and_every_accept_length_equal_the_package(
    pair: KnowingPair, oracle: tuple[int, dict[str, SimpleNamespace]], overlap: bool
) -> None:
    """Prompts shorter and longer than the window, all in one batch here and one by one there."""
    num_steps, expected = oracle
    engine = make_engine(pair.target, pair.proposer(num_steps), overlap=overlap)
    seen: Counter[int] = Counter()
    for name, answer in run(engine, {name: (PROMPTS[name], GREEDY) for name in expected}, check=False).items():
        theirs = expected[name]
        assert theirs.output_ids[0, len(PROMPTS[name]) :].tolist() == answer.token_ids
        count = full_blocks(theirs.acceptance_lengths, num_steps)
        assert theirs.acceptance_lengths[:count] == step_lengths(answer)[:count]
        seen.update(theirs.acceptance_lengths[:count])

    assert set(seen) == set(range(1, num_steps + 2)), "an accept length never occurred"
    assert min(map(len, PROMPTS.values())) < WINDOW < max(map(len, PROMPTS.values()))


@pytest.mark.parametrize("num_steps", DEPTHS)
@LAGS
def test_draft_changes_no_text(pair: KnowingPair, plain: dict[str, list[int]], num_steps: int, overlap: bool) -> None:
    """Hits, chunks, preemption, aborts, reused rows and sampled rows beside greedy ones, all at once."""
    engine = make_engine(
        pair.target,
        pair.proposer(num_steps),
        overlap=overlap,
        num_pages=8,
        max_prefill_tokens=100,
        decode_prefill_tokens=64,
    )
    plans = record_plans(engine)
    accepted, num_hits, sampled = Counter(), 0, []
    for wave in WAVES:
        requests = {name: (PROMPTS[name], SAMPLED if name == "sampled" else GREEDY) for name in wave}
        for name, answer in run(engine, requests, aborts={"aborted": 9} if "aborted" in wave else None).items():
            accepted.update(answer.accepted)
            num_hits += answer.cached_tokens > 0
            if name == "sampled":
                sampled.append(answer.token_ids)
            else:
                assert plain[name][: len(answer.token_ids)] == answer.token_ids, name
                assert name == "aborted" or len(answer.token_ids) == MAX_TOKENS

    assert set(range(num_steps + 1)) <= set(accepted), "an accept length never occurred"
    assert engine.scheduler.num_preemptions > 0
    assert num_hits > 0
    assert any(not chunk.is_last for plan in plans for chunk in plan.prefill), "no prompt was cut into chunks"
    assert any(plan.decode and plan.prefill for plan in plans), "no chunk ran beside a decode"
    assert max(len(plan.decode) for plan in plans) > 1, "nothing was batched"
    alone = run(make_engine(pair.target, pair.proposer(num_steps)), {"sampled": (PROMPTS["sampled"], SAMPLED)})["sampled"]
    assert sampled == [alone.token_ids, alone.token_ids], "a sampled request beside others, or after a hit, got another text"
    assert len({*alone.accepted}) > 1


@LAGS
def test_hit_drafts_what_a_miss_drafted(pair: KnowingPair, overlap: bool) -> None:
    """The window comes with the pages: after a hit every step drafts the same tokens with the same q, accepted or not."""
    turn = PROMPTS["long"] + PROMPTS["short"]

    def drafted(engine: Engine) -> tuple[Answer, list[Proposal]]:
        proposals: list[Proposal] = []
        propose = type(engine.executor.proposer).propose

        def recording(inputs):
            proposals.append(propose(engine.executor.proposer, inputs))
            return proposals[-1]

        engine.executor.proposer.propose = recording
        return run(engine, {"turn": (turn, GREEDY)})["turn"], proposals

    engine = make_engine(pair.target, pair.proposer(7), overlap=overlap)
    miss, fresh = drafted(engine)
    hit, restored = drafted(engine)

    assert (0, 192) == (miss.cached_tokens, hit.cached_tokens)
    assert miss.accepted == hit.accepted
    assert len(fresh) == len(restored) > 10
    for one, two in zip(fresh, restored, strict=True):
        assert torch.equal(one.tokens, two.tokens)
        torch.testing.assert_close(one.q, two.q)


def record_drafts(engine: Engine) -> dict[tuple[int, ...], torch.Tensor]:
    """Drafts of each text up to its pending token, from now on."""
    proposer, drafts = engine.executor.proposer, {}
    propose = proposer.propose

    def recording(inputs: DraftInputs) -> Proposal:
        proposal = propose(inputs)
        for seat, length, tokens in zip(inputs.seats, inputs.lengths, proposal.tokens, strict=True):
            if seat:
                drafts[tuple(inputs.history[seat, : length + 1].tolist())] = tokens
        return proposal

    proposer.propose = recording
    return drafts


@LAGS
def test_a_verify_of_changing_width_changes_neither_text_nor_drafts(
    pair: KnowingPair, plain: dict[str, list[int]], overlap: bool
) -> None:
    """The block is always 1 + k wide, since its rows depend on the width; adaptive depth shortens the verify alone."""
    requests = {name: (PROMPTS[name], GREEDY) for name in ("long", "short", "page")}
    engines = [make_engine(pair.target, pair.proposer(7), overlap=overlap) for _ in range(2)]
    fixed, cycling = (record_drafts(engine) for engine in engines)
    engines[1]._depth = CyclingDepth(7)
    plans = record_plans(engines[1])

    for engine in engines:
        assert {name: plain[name] for name in requests} == {n: answer.token_ids for n, answer in run(engine, requests).items()}

    assert set(range(8)) == {plan.depth for plan in plans if plan.decode}
    both = fixed.keys() & cycling.keys()
    assert len(both) > 20
    assert all(torch.equal(fixed[text], cycling[text]) for text in both)


@pytest.mark.parametrize("num_steps", [1, 7])
@LAGS
def test_context_fills_to_its_last_position(pair: KnowingPair, num_steps: int, overlap: bool) -> None:
    """Full blocks up to the end of the context and not a token more."""
    prompt, limit = PROMPTS["short"], 64
    engine = make_engine(pair.target, pair.proposer(num_steps), overlap=overlap, max_model_len=limit, num_pages=4)

    answer = run(engine, {"full": (prompt, SamplingParams(max_tokens=None, ignore_eos=True))})["full"]

    assert plain_tokens(pair.target, prompt, limit - len(prompt)) == answer.token_ids
    assert sum(answer.accepted) > 0


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_max_tokens_cuts_inside_a_block(pair: KnowingPair, plain: dict[str, list[int]], max_tokens: int) -> None:
    """Exactly that many tokens leave, whatever the block held."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)

    answer = run(make_engine(pair.target, pair.proposer(7), overlap=True), {"page": (PROMPTS["page"], params)})["page"]

    assert plain["page"][:max_tokens] == answer.token_ids


def test_launch_reads_nothing_back(pair: KnowingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reads forbidden inside `launch`, a run with hits, drafts and rejections ends."""
    engine = make_engine(pair.target, pair.proposer(7), overlap=True)
    watch_launches(engine, monkeypatch)
    for _ in range(2):
        answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "short")})

    assert answers["long"].cached_tokens == 128
    assert sum(answers["long"].accepted) > 0


def test_a_rebuild_frees_the_old_caches_before_it_takes_new_ones(
    pair: KnowingPair, plain: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plane and rings of the draft too: both sizes together need not fit. The text stays."""
    engine = make_engine(pair.target, pair.proposer(7))
    store, proposer = engine.executor.memory.pages, engine.executor.proposer
    tensors = (store.keys[0]._base, proposer.plane, proposer.rings.keys)
    old = [weakref.ref(tensor) for tensor in tensors]
    del store, proposer, tensors
    left: list[bool] = []

    def allocating(layout: MemoryLayout, device: torch.device) -> dict[str, torch.Tensor]:
        left.extend(ref() is not None for ref in old)
        return allocate(layout, device)

    monkeypatch.setattr("paceline_runtime.engine.build.allocate", allocating)

    assert engine.rebuild(Rebuild(num_pages=14)).error is None
    assert left == [False] * 3
    assert run(engine, {"page": (PROMPTS["page"], GREEDY)})["page"].token_ids == plain["page"]


def step_lengths(answer: Answer) -> list[int]:
    """Tokens that each verify step committed."""
    return [len(tokens.token_ids) for tokens in answer.steps if tokens.steps]
