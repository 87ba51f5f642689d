"""DFlash 2 on hybrid targets: text and accept lengths of the `dflash` package, and plain text whatever else happens."""

from __future__ import annotations

import time
import warnings
from collections import Counter

import dflash.model
import pytest
import torch
import whole_text_target
from hybrid_models import HYBRIDS, lasting
from knowing_pairs import VOCAB_SIZE, WINDOW, KnowingPair, knowing_pair
from law_engine import make_engine, plain_tokens, record_plans, run
from law_prompts import law_prompts
from window_shadow import WindowShadow

from paceline_runtime.params import SamplingParams

MAX_TOKENS = 60
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=5, ignore_eos=True)
LAGS = pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
DEPTHS = pytest.mark.parametrize("num_steps", [1, 3, 7])


@pytest.fixture(scope="module", params=HYBRIDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KnowingPair:
    """A target of each hybrid family and a draft that knows most of its next tokens."""

    def prepare(model: torch.nn.Module) -> torch.nn.Module:
        model.config._experts_implementation = "eager"  # torch groups no float64 products
        return lasting(model)

    return knowing_pair(tmp_path_factory.mktemp(request.param), request.param, scale=0.12, prepare=prepare)


PROMPTS = law_prompts(8, range(VOCAB_SIZE - 1), short=3, page=64, sampled=(70, 20), aborted=30, other=11)
WAVES = (("long", "short", "sampled", "aborted", "page"), ("parted", "long", "sampled", "other", "short"))


@pytest.fixture(scope="module")
def plain(pair: KnowingPair) -> dict[str, list[int]]:
    """Greedy text of every prompt, recomputed whole for every token."""
    return {name: plain_tokens(pair.target, ids, MAX_TOKENS) for name, ids in PROMPTS.items() if name != "sampled"}


def package_text(pair: KnowingPair, prompt: list[int], num_steps: int) -> tuple[list[int], list[int]]:
    """Text and tokens per step of the package's own generation."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(dflash.model, "_cuda_time", time.perf_counter)
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        target = whole_text_target.install(patch, pair.oracle_target)
        arguments = pair.oracle_draft, target, torch.tensor([prompt]), MAX_TOKENS, None
        out = dflash.model.dflash_generate(*arguments, block_size=num_steps + 1, return_stats=True)
    return out.output_ids[0, len(prompt) :].tolist(), out.acceptance_lengths


@DEPTHS
def test_text_and_accept_lengths_equal_the_package(pair: KnowingPair, plain: dict[str, list[int]], num_steps: int) -> None:
    """Prompts shorter and longer than the window, all in one batch here and one by one there."""
    engine, seen = make_engine(pair.target, pair.proposer(num_steps), overlap=True), Counter()
    names = ("long", "short", "page", "other")
    answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in names}, check=False)
    for name, answer in answers.items():
        text, lengths = package_text(pair, PROMPTS[name], num_steps)
        assert plain[name] == text == answer.token_ids
        # The package narrows its last blocks to the tokens that are left; ours are cut, and count what left.
        full = [n for n, made in zip(lengths, _before(lengths), strict=True) if 1 + made + num_steps < MAX_TOKENS]
        assert full == [len(tokens.token_ids) for tokens in answer.steps if tokens.steps][: len(full)]
        seen.update(full)
    assert set(seen) == set(range(1, num_steps + 2)), "an accept length never occurred"
    assert min(len(PROMPTS[name]) for name in names) < WINDOW < max(len(PROMPTS[name]) for name in names)


def _before(lengths: list[int]) -> list[int]:
    return [sum(lengths[:index]) for index in range(len(lengths))]


@DEPTHS
@LAGS
def test_draft_changes_no_text(pair: KnowingPair, plain: dict[str, list[int]], num_steps: int, overlap: bool) -> None:
    """Hits, chunks, preemption, aborts and sampled rows beside greedy ones, all at once."""
    options = dict(num_pages=8, max_prefill_tokens=100, decode_prefill_tokens=64)
    engine = make_engine(pair.target, pair.proposer(num_steps), overlap=overlap, **options)
    plans, accepted, num_hits, sampled = record_plans(engine), Counter(), 0, []
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
    assert max(len(plan.decode) for plan in plans) > 1, "nothing was batched"
    assert sampled[0] == sampled[1], "a sampled request beside others, or after a hit, got another text"


@LAGS
def test_a_hit_drafts_what_the_whole_text_drafts(pair: KnowingPair, overlap: bool) -> None:
    """After hits on a prompt snapshot and on a finish, the window comes with the pages: accept lengths are the package's."""
    engine = make_engine(pair.target, pair.proposer(7), overlap=overlap)
    first = run(engine, {"long": (PROMPTS["long"], GREEDY)})["long"]
    for prompt, hit in ((PROMPTS["long"], 128), ((PROMPTS["long"] + first.token_ids)[:250], 192)):
        answer = run(engine, {"again": (prompt, GREEDY)})["again"]
        text, lengths = package_text(pair, prompt, 7)
        assert (hit, text) == (answer.cached_tokens, answer.token_ids)
        assert lengths[:6] == [len(tokens.token_ids) for tokens in answer.steps if tokens.steps][:6]


@LAGS
def test_a_restored_window_is_bitwise_what_was_written(pair: KnowingPair, plain: dict[str, list[int]], overlap: bool) -> None:
    """After hits on a prompt snapshot, on one left by an aborted request, a finish, and a shared beginning."""
    engine = make_engine(pair.target, pair.proposer(7), overlap=overlap)
    shadow, long = WindowShadow(engine), PROMPTS["long"]
    run(engine, {"long": (long, GREEDY)}, aborts={"long": 5})
    assert run(engine, {"again": (long, GREEDY)})["again"].token_ids == plain["long"]
    run(engine, {"turn": (long + plain["long"] + [5, 6, 7], GREEDY)})
    shared = PROMPTS["page"] + PROMPTS["short"]
    for end in range(3):
        run(engine, {"shared": (shared + [end] * 70, GREEDY)})
    assert shadow.num_restored == {0: 3, 128: 1, 192: 1, 64: 1}


@LAGS
def test_a_preempted_requests_window_is_restored_bitwise(pair: KnowingPair, plain: dict[str, list[int]], overlap: bool) -> None:
    """It comes back on its own snapshot, and its text is the plain one."""
    engine = make_engine(pair.target, pair.proposer(3), overlap=overlap, num_pages=6, max_model_len=384)
    shadow = WindowShadow(engine)
    answers = run(engine, {name: (PROMPTS[name], GREEDY) for name in ("long", "parted")})
    assert [plain["long"], plain["parted"]] == [answer.token_ids for answer in answers.values()]
    assert engine.scheduler.num_preemptions == 1
    assert shadow.num_restored == {0: 2, 128: 1}


def test_windows_after_2400_decoded_tokens_are_restored_bitwise(pair: KnowingPair) -> None:
    """At the finish, and at the snapshot kept on the way to it; verifies wrote the rings many times over."""
    engine = make_engine(pair.target, pair.proposer(7), overlap=True, max_model_len=2560)
    shadow = WindowShadow(engine)
    answer = run(engine, {"other": (PROMPTS["other"], SamplingParams(max_tokens=2400, ignore_eos=True))}, check=False)["other"]
    text = PROMPTS["other"] + answer.token_ids
    for cut in (len(text), 2340):
        run(engine, {"next": ([*text[:cut], 5, 6, 7], SamplingParams(max_tokens=9, ignore_eos=True))})
    assert {0, 7} <= set(answer.accepted)
    assert shadow.num_restored == {0: 1, 2368: 1, 2304: 1}
