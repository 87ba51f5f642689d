"""bfloat16: the plain run's tokens forced through the verify give its logits; a free run parts from it at near ties only."""

import pytest
import torch
from forced_text import ExpertReplay, Recorder, TextProposer, Texts
from gpu_scale import FAMILIES, load_predictable, relative_rms
from law_engine import make_engine, run

from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.judge import judge

BOUND = 2e-2
"""Relative RMS of logits: two bfloat16 roundings per value and layer, summed over the layers."""
NUM_REQUESTS = 4


@pytest.fixture(scope="module", params=FAMILIES)
def target(request, scale, tmp_path_factory):
    """A predictable target of each family."""
    return load_predictable(request.param, tmp_path_factory.mktemp("predictable"), scale)


@pytest.fixture(scope="module")
def requests(scale, target):
    """Prompts of different lengths, the longest of several chunks; each begins with a token of its own."""
    generator = torch.Generator().manual_seed(5)
    params = SamplingParams(max_tokens=scale.pick(60, 200), ignore_eos=True)
    lengths = [scale.pick(7, 61) + index * scale.pick(30, 130) for index in range(NUM_REQUESTS)]
    vocab_size = target.facts.vocab_size
    prompts = [[11 + i, *torch.randint(0, vocab_size, (n - 1,), generator=generator).tolist()] for i, n in enumerate(lengths)]
    return {str(prompt[0]): (prompt, params) for prompt in prompts}


def engine_of(target, proposer=None, accept=judge):
    """Chunks of 64 tokens, all requests at once."""
    options = dict(max_running_req=NUM_REQUESTS, max_prefill_tokens=64, cache_type="naive", memory_bytes=8 << 30)
    return make_engine(target, proposer, max_model_len=min(1024, target.facts.max_positions), accept=accept, **options)


@pytest.fixture(scope="module")
def plain(target, requests):
    """Texts, logits and expert choices of the run without speculation."""
    recorder, replay = Recorder(), ExpertReplay()
    engine = engine_of(target, accept=recorder)
    with pytest.MonkeyPatch.context() as patch, replay.watch(patch, engine.executor, replay=False):
        answers = run(engine, requests)
    texts = {prompt[0]: prompt + answers[name].token_ids for name, (prompt, _) in requests.items()}
    return texts, recorder.logits, replay


@pytest.fixture(params=[1, 3, 7], ids="k{}".format)
def forced(request, target, requests, plain, monkeypatch):
    """The same texts through a verify of k drafts, experts as in the plain run."""
    texts, _, replay = plain
    known = Texts(texts, request.param, target.facts.vocab_size, target.device)
    recorder = Recorder(known)
    engine = engine_of(target, TextProposer(known), recorder)
    with replay.watch(monkeypatch, engine.executor, replay=True):
        answers = run(engine, requests)
    assert {name: answer.token_ids for name, answer in answers.items()} == {
        name: texts[prompt[0]][len(prompt) :] for name, (prompt, _) in requests.items()
    }
    return known, recorder


def test_forced_logits_equal_plain_ones_and_free_text_parts_at_near_ties(target, requests, plain, forced, monkeypatch, tell):
    """Every accept length occurs; a first difference needs a gap of at most twice the row's deviation, on few rows."""
    texts, expected, replay = plain
    known, recorder = forced
    num_steps = known.num_steps
    places = sorted(expected.keys() & recorder.logits.keys())
    found, wanted = (torch.stack([logits[place] for place in places]) for logits in (recorder.logits, expected))
    deviation = relative_rms(found, wanted)
    deviations = dict(zip(places, (found - wanted).abs().amax(1).tolist(), strict=True))

    engine = engine_of(target, TextProposer(known))
    with replay.watch(monkeypatch, engine.executor, replay=True):
        free = run(engine, requests)
    num_rows, parted = 0, []
    for name, (prompt, _) in requests.items():
        text, mine = texts[prompt[0]][len(prompt) :], free[name].token_ids
        same = next((i for i, (a, b) in enumerate(zip(text, mine, strict=True)) if a != b), len(text))
        num_rows += min(same + 1, len(text))
        if same < len(text):
            parted.append((prompt[0], len(prompt) + same))

    tell(k=num_steps, rows=len(places), relative_rms=deviation, free_rows=num_rows, parted=len(parted))
    assert len(places) == sum(params.max_tokens for _, params in requests.values())
    assert set(range(num_steps + 1)) == set(recorder.accepted)
    assert deviation <= BOUND
    assert len(parted) < 0.01 * num_rows
    for place in parted:
        best = expected[place].topk(2).values
        assert best[0] - best[1] <= 2 * deviations[place], place
    assert (replay.num_replayed > 0) == ("moe" in target.facts.family)
