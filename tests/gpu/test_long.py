"""Long prompts in chunks: peak memory is what the plan said, drafts are counted as ever, and taps see every row once."""

import gc

import pytest
import torch
from gpu_scale import random_dflash, save_predictable
from law_engine import MAX_MODEL_LEN, make_engine, run

from paceline_runtime.loaders import load_target
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.dflash.taps import TapSum

NUM_STEPS, NEW_TOKENS = 7, 24
TOLERANCE = 1.02
LENGTHS = {"4k": (130, 4096), "32k": (260, 32_768), "128k": (400, 131_072)}


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5"])
def saved(request, scale, tmp_path_factory):
    """A small target, the folder it was saved in, and the bytes that were allocated before it."""
    path = save_predictable(request.param, tmp_path_factory.mktemp("long"), scale, num_hidden_layers=4)
    before = torch.cuda.memory_allocated() if scale.is_cuda else 0
    return path, load_target(path, dtype=scale.dtype, device=scale.device), before


@pytest.fixture
def tapped(monkeypatch):
    """Rows handed to the draft, by layer."""
    rows: dict[int, int] = {}
    keep = TapSum.layer_output

    def counting(sink, layer, hidden):
        rows[layer] = rows.get(layer, 0) + hidden.shape[0]
        keep(sink, layer, hidden)

    monkeypatch.setattr(TapSum, "layer_output", counting)
    return rows


def planned_bytes(engine):
    """The plan's last line, back in bytes."""
    line = next(line for line in engine.info.plan.splitlines() if line.startswith("together"))
    return float(line.split()[-2].replace(",", "")) * 2**20


@pytest.mark.parametrize("name", LENGTHS)
def test_long_prompt_fits_its_plan(saved, scale, tapped, tell, name):
    """Prefill and a few verify steps of a random draft, replayed and launched; then the same counts as of any request.

    A replay hands its rows on without Python, so taps are counted where steps are launched.
    """
    path, target, before = saved
    num_tokens = scale.pick(*LENGTHS[name])
    for cuda_graphs in (True, False):
        tapped.clear()
        proposer = random_dflash(path, target, NUM_STEPS, window=scale.pick(64, 2048))
        engine = _engine(target, proposer, scale, num_tokens, cuda_graphs)
        _reset_peak(scale)
        answer, peak = _answer(engine, scale, num_tokens)

        planned, verifies = planned_bytes(engine), [tokens for tokens in answer.steps if tokens.steps]
        figures = dict(plan_mib=planned / 2**20, peak_mib=(peak - before) / 2**20, steps=len(verifies))
        tell(graphs=cuda_graphs, prompt=num_tokens, **figures)
        assert peak - before <= TOLERANCE * planned
        _check_counts(engine, answer.token_ids, verifies)
        if not cuda_graphs:
            assert set(tapped) == set(proposer.draft.config.target_layer_ids)
            assert set(tapped.values()) == {num_tokens + (1 + NUM_STEPS) * len(verifies)}
        engine.check_integrity()
        engine.executor.release()


def _engine(target, proposer, scale, num_tokens, cuda_graphs):
    max_model_len = scale.pick(MAX_MODEL_LEN, num_tokens + 64)
    options = dict(max_running_req=1, max_prefill_tokens=scale.pick(128, 2048), memory_bytes=64 << 30, cuda_graphs=cuda_graphs)
    return make_engine(target, proposer, max_model_len=max_model_len, **options)


def _reset_peak(scale):
    """Engines of the tests before hold memory until their circles are collected."""
    if scale.is_cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _answer(engine, scale, num_tokens):
    prompt = torch.randint(0, engine.info.vocab_size, (num_tokens,)).tolist()
    answer = run(engine, {"long": (prompt, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True))}, check=False)["long"]
    return answer, torch.cuda.max_memory_allocated() if scale.is_cuda else 0


def _check_counts(engine, token_ids, verifies):
    assert len(token_ids) == NEW_TOKENS
    assert NEW_TOKENS == 1 + sum(1 + tokens.accepted for tokens in verifies[:-1]) + len(verifies[-1].token_ids)
    assert all(0 <= tokens.accepted <= tokens.drafted == NUM_STEPS for tokens in verifies)
    stats = engine.stats()
    assert sum(stats.drafted_by_position) == NUM_STEPS * len(verifies)
    assert sum(stats.accepted_by_position) == sum(tokens.accepted for tokens in verifies)
