"""Steps whose ends are computed by kernels give the texts of steps in plain torch: inputs, judgement and commit, in any mix."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from knowing_pairs import MAX_POSITIONS, knowing_pair
from law_engine import PADDED, make_engine, run

from paceline_compat import read_draft
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels import commit_runs, counter_random, greedy_accept, step_inputs
from paceline_kernels.backend import Backend, runs_kernel
from paceline_runtime.loaders import load_target
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.dflash.load import load_proposer
from paceline_runtime.speculative.ngram import NgramProposer

FACES = (step_inputs, commit_runs, greedy_accept, counter_random)
GREEDY = {
    "long": (list(range(50)), SamplingParams(max_tokens=20, ignore_eos=True)),
    "end": ([7, 3] * 57, SamplingParams(max_tokens=14, ignore_eos=True)),
}
"""One crosses a page's end, the other ends where the context does."""
SAMPLED = {"sampled": ([5, 6, 7], SamplingParams(max_tokens=8, temperature=0.9, top_k=9, seed=3))}
MAX_MODEL_LEN = 2 * PAGE_TOKENS


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A hybrid target in float32, which kernels take, and a draft that knows it."""
    known = knowing_pair(tmp_path_factory.mktemp("pair"), "qwen3_5")
    target = load_target(known.target_path, dtype=torch.float32)
    return target, lambda: load_proposer(
        read_draft(str(known.draft_path)), target, 7, torch.float32, torch.device("cpu"), MAX_POSITIONS
    )


@pytest.mark.parametrize(
    ("algorithm", "requests"), [("off", GREEDY), ("ngram", GREEDY | SAMPLED), ("dflash", GREEDY), ("dflash", GREEDY | SAMPLED)]
)
def test_texts_are_the_same(pair, algorithm, requests, monkeypatch):
    """With inert rows beside the real ones; each kernel ran."""
    target, make_dflash = pair
    asked: Counter[str] = Counter()

    def texts():
        proposer = {"off": lambda: None, "ngram": lambda: NgramProposer(3), "dflash": make_dflash}[algorithm]()
        engine = make_engine(target, proposer, max_model_len=MAX_MODEL_LEN, buckets=PADDED)
        answers = run(engine, {name: (ids, params) for name, (ids, params) in requests.items()})
        return {name: answer.token_ids for name, answer in answers.items()}

    expected = texts()
    for face in FACES:

        def forced(backend, *others, name=face.__name__):
            asked[name] += 1
            return runs_kernel(Backend.KERNEL if backend is Backend.AUTO else backend, *others)

        monkeypatch.setattr(face, "runs_kernel", forced)

    assert expected == texts()
    assert [20, MAX_MODEL_LEN - 114] == [len(expected[name]) for name in GREEDY]
    due = {step_inputs, commit_runs, greedy_accept} | ({counter_random} if "sampled" in requests else set())
    assert {face.__name__ for face in due} <= asked.keys()
