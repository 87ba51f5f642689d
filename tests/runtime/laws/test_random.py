"""Random requests at random times in random engines: each gets the text that it gets alone, and all come to an end.

The laws beside this one arrange what they are about; this one meets what nobody thought of arranging. A seed makes the same
scenes everywhere. Every plan reaches the device as bytes; the text alone comes from plans that were never encoded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hybrid_models import HYBRIDS
from law_engine import make_engine
from mtp_models import VOCAB_SIZE, MtpPair, save_with_mtp

from paceline_runtime.engine.core import Engine
from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Submit
from paceline_runtime.models.base import TargetModel
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.speculative.mtp.load import load_mtp
from paceline_runtime.speculative.ngram import NgramProposer

SEEDS = (5, 6)
"""The first preempts much; in the second, requests once waited for pages that they held themselves."""
NUM_SCENES = 5
MAX_MODEL_LEN = 320
MAX_STEPS = 3000
KINDS = ("off", "ngram", "mtp")


@dataclass
class Scene:
    """Requests with the step at which each arrives, and after how many tokens some are aborted."""

    submits: list[Submit]
    arrivals: list[int]
    aborts: dict[str, int]


@pytest.fixture(scope="module", params=HYBRIDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MtpPair:
    return save_with_mtp(request.param, tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def target(pair: MtpPair) -> TargetModel:
    return load_target(pair.path, dtype=torch.float64)


def draws() -> Iterator[random.Random]:
    """One source of scenes after the other."""
    for seed in SEEDS:
        draw = random.Random(seed)
        for _ in range(NUM_SCENES):
            yield draw


def draw_params(draw: random.Random) -> SamplingParams:
    """Greedy twice as often as sampled; penalties, bias and stop tokens now and then."""
    fields: dict[str, object] = {"max_tokens": draw.choice([1, 5, 70, 90]), "ignore_eos": True}
    if draw.random() < 0.35:
        fields |= {"temperature": draw.choice([1e-3, 0.9, 5.0]), "seed": draw.randrange(1 << 40)}
        fields |= draw.choice([{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.05}])
    if draw.random() < 0.25:
        fields |= {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": draw.choice([0.8, 1.3])}
    if draw.random() < 0.2:
        fields["logit_bias"] = {draw.randrange(VOCAB_SIZE): draw.choice([-100.0, 4.0]) for _ in range(3)}
    if draw.random() < 0.2:
        fields["stop_token_ids"] = (draw.randrange(VOCAB_SIZE),)
    return SamplingParams(**fields)


def draw_scene(draw: random.Random, beginnings: list[list[int]]) -> Scene:
    """Up to eight requests, most of which begin like others."""
    submits = []
    for number in range(draw.randrange(2, 9)):
        beginning = draw.choice([[], *beginnings])[: draw.choice([64, 150, 150])]
        prompt = beginning + [draw.randrange(VOCAB_SIZE - 1) for _ in range(draw.choice([1, 20, 64, 90]))]
        beginnings.append(prompt)
        choice, num_opening = draw.randrange(3), draw.choice([0, 0, 1, 4])
        fields = {"params": draw_params(draw), "choice": choice, "num_generation_prompt": num_opening}
        submits.append(Submit(request_id=str(number), prompt_ids=prompt[: MAX_MODEL_LEN - 91], **fields))
    arrivals = [draw.choice([0, 0, 1, 5, 30]) for _ in submits]
    aborts = {submit.request_id: draw.choice([0, 1, 9]) for submit in submits if draw.random() < 0.2}
    return Scene(submits, arrivals, aborts)


def play(engine: Engine, scene: Scene, seen: Counter[str]) -> dict[str, list[int]]:
    """The tokens that each request got."""
    texts: dict[str, list[int]] = {submit.request_id: [] for submit in scene.submits}
    waiting = sorted(zip(scene.arrivals, range(len(scene.submits)), strict=True))
    for step in range(MAX_STEPS):
        while waiting and waiting[0][0] <= step:
            assert engine.add(scene.submits[waiting.pop(0)[1]]) is None
        for tokens in engine.step() if engine.has_work else ():
            texts[tokens.request_id] += tokens.token_ids
            seen["hits"] += tokens.cached_tokens > 0
            seen["accepted"] += tokens.accepted
        for name, limit in scene.aborts.items():
            if len(texts[name]) >= limit:
                engine.abort(name)
        engine.check_integrity()
        if not waiting and not engine.has_work:
            return texts
    raise AssertionError("it never comes to an end")


def make_proposer(kind: str, num_steps: int, pair: MtpPair, target: TargetModel) -> Proposer | None:
    if kind == "mtp":
        return load_mtp(target, num_steps)
    return NgramProposer(num_steps) if kind == "ngram" else None


def alone(target: TargetModel, submit: Submit, proposer: Proposer | None) -> list[int]:
    """What a request gets with nobody beside it and nothing cached, its plans handed over as they are."""
    engine = make_engine(target, proposer, max_model_len=MAX_MODEL_LEN, as_bytes=False)
    return play(engine, Scene([submit], [0], {}), Counter())[submit.request_id]


@pytest.mark.parametrize("kind", KINDS)
def test_every_request_gets_the_text_that_it_gets_alone(pair: MtpPair, target: TargetModel, kind: str) -> None:
    """Greedy text also equals the target's own. A sampled request that had to start again may draw another text."""
    seen: Counter[str] = Counter()
    for draw in draws():
        num_steps, num_running = draw.choice([1, 3, 7]), draw.choice([1, 2, 4])
        options = dict(overlap=draw.random() < 0.5, max_running_req=num_running, max_prefill_tokens=draw.choice([64, 100, 512]))
        options |= dict(num_pages=draw.choice([5, 5, 6, 12]), num_state_slots=draw.choice([2, 2, 3]) * num_running)
        options |= dict(decode_prefill_tokens=64, max_model_len=MAX_MODEL_LEN)  # measured budgets would differ from run to run
        engine, beginnings = make_engine(target, make_proposer(kind, num_steps, pair, target), **options), []
        for _ in range(2):
            scene, before = draw_scene(draw, beginnings), engine.scheduler.num_preemptions
            texts = play(engine, scene, seen)
            is_preempted = engine.scheduler.num_preemptions > before
            seen["preempted"] += is_preempted
            for submit in scene.submits:
                if is_preempted and kind != "off" and not submit.params.is_greedy:
                    continue
                own = None if submit.params.is_greedy else make_proposer(kind, num_steps, pair, target)
                text, expected = texts[submit.request_id], alone(target, submit, own)
                assert text == (expected[: len(text)] if submit.request_id in scene.aborts else expected)
                seen["greedy" if submit.params.is_greedy else "sampled"] += 1
        assert engine.executor.launch.num_plans > 0, "no plan was sent as bytes"
        seen["padded" if options["overlap"] else "exact"] += 1

    assert all(seen[name] for name in ("hits", "preempted", "greedy", "sampled", "padded", "exact")), seen
    assert seen["accepted"] or kind == "off"
