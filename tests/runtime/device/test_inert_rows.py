"""Padded rows are inert: beside them every real row computes the same, and they leave a trace in the dummies only."""

from __future__ import annotations

import pytest
import torch
from hybrid_models import HYBRIDS
from knowing_pairs import knowing_pair
from law_engine import make_engine
from mtp_models import save_with_mtp

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import VerifyBatch
from paceline_runtime.device.executor import Executor
from paceline_runtime.device.inputs import Buckets
from paceline_runtime.layers.experts import Experts
from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.mtp.load import load_mtp
from paceline_runtime.speculative.ngram import NgramProposer

NUM_INERT = 5
PADDED = Buckets(rows=lambda count: count + NUM_INERT, pages=lambda count: count + 3)
KINDS = (
    SamplingParams(ignore_eos=True, max_tokens=150),
    SamplingParams(ignore_eos=True, max_tokens=150, temperature=0.9, top_k=9, seed=3, logprobs=2),
    SamplingParams(ignore_eos=True, max_tokens=150, temperature=0.7, top_p=0.9, seed=4, presence_penalty=0.3),
    SamplingParams(ignore_eos=True, max_tokens=150, repetition_penalty=1.2, logit_bias={3: 2.0, 9: -4.0}),
)
NUM_STEPS = 30
PROPOSERS = ("off", "ngram", "mtp", "dflash")


@pytest.fixture(scope="module", params=["qwen3", *HYBRIDS])
def pair(request, tmp_path_factory):
    """A target with a DFlash draft that knows it."""
    return request.param, knowing_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(params=PROPOSERS)
def engine(request, pair, tmp_path):
    """An engine with requests of all kinds in the middle of their texts; some have just passed a page's end."""
    family, known = pair
    target, proposer = known.target, None
    if request.param == "mtp":
        if family == "qwen3":
            pytest.skip("qwen3 models have no MTP head")
        path = save_with_mtp(family, tmp_path).path
        target = load_target(path, dtype=torch.float64)
        proposer = load_mtp(target, 3)
    elif request.param == "ngram":
        proposer = NgramProposer(3)
    elif request.param == "dflash":
        proposer = known.proposer(3)
    engine = make_engine(target, proposer, max_running_req=6, overlap=False)
    for index, params in enumerate(KINDS):
        prompt = [(7 * index + i) % 60 for i in range(70 + 13 * index)]  # so long that prompt lookup finds something
        assert engine.add(Submit(request_id=str(index), prompt_ids=prompt, params=params)) is None
    return engine


def buffers_of(executor: Executor) -> dict[str, torch.Tensor]:
    """Everything that a step may write, what belongs to dummies cut off: page, slot or seat 0."""
    pages, states, seats, proposer = executor.memory.pages, executor.memory.states, executor.seats, executor.proposer
    found = {f"keys {i}": tensor[1:] for i, tensor in enumerate(pages.keys)}
    found |= {f"values {i}": tensor[1:] for i, tensor in enumerate(pages.values)}
    names = ("history", "page_table", "lengths", "replay", "state_slots")
    found |= {name: getattr(seats, name)[1:] for name in names}
    found |= {f"{name} of the dummy": getattr(seats, name)[:1] for name in names[1:]}
    for name, tensor in (vars(states) if states else {}).items():
        if torch.is_tensor(tensor):
            found[f"state{name}"] = tensor[:, 1:]
    if proposer is not None and proposer.name == "dflash":
        found |= {"context rows": proposer.plane[1:]}
        found |= {"ring keys": proposer.rings.keys[:, 1:], "ring values": proposer.rings.values[:, 1:]}
    if proposer is not None and proposer.name == "mtp":
        found |= {f"MTP {name}": tensor[1:] for name, tensor in vars(proposer.pages).items()}
        found |= {"hidden": proposer._hidden[1:], "first": proposer._first[1:]}
    return found


class TwiceLaunched:
    """Carries out every step twice from the same state, exactly and padded, and compares what came of it."""

    def __init__(self, engine) -> None:
        self.exact, self.num_padded = engine.executor, 0
        self.padded = Executor(self.exact.target, self.exact.proposer, buckets=PADDED)
        self.padded.bind(self.exact.memory, self.exact.seats)
        self._launch = self.exact.launch
        engine.executor.launch = self

    def __call__(self, plan):
        before = {name: tensor.clone() for name, tensor in buffers_of(self.exact).items()}
        expected = self._launch(plan).read()
        after = {name: tensor.clone() for name, tensor in buffers_of(self.exact).items()}
        for name, tensor in buffers_of(self.exact).items():
            tensor.copy_(before[name])
        handle = self.padded.launch(plan)
        found = handle.read()

        assert [row.token_ids for row in expected.decode] == [row.token_ids for row in found.decode]
        assert [row.num_drafted for row in expected.decode] == [row.num_drafted for row in found.decode]
        for name, tensor in buffers_of(self.exact).items():
            untouched = after[name] == before[name]
            assert torch.equal(tensor[untouched], before[name][untouched]), f"{name}: written where nobody sits"
            torch.testing.assert_close(tensor, after[name], atol=1e-9, rtol=1e-9)
        self.num_padded += bool(plan.decode)
        return handle


def watch_forwards(engine, monkeypatch) -> list[VerifyBatch]:
    """The padded verifies from now on; none of their inert rows is active, or reaches an expert."""
    seen: list[VerifyBatch] = []
    forward, route = engine.executor.target.forward, Experts.route

    def recorded_forward(batch, *others):
        if isinstance(batch, VerifyBatch) and bool((batch.seats == 0).any()):
            inert = (batch.seats == 0).repeat_interleave(batch.width)
            assert not batch.active[inert].any()
            assert (batch.cells[inert] < PAGE_TOKENS).all()
            seen.append(batch)
        return forward(batch, *others)

    def recorded_route(mixture, x, active):
        weights, experts = route(mixture, x, active)
        assert (experts[~active] == mixture.num_experts).all()
        return weights, experts

    monkeypatch.setattr(engine.executor.target, "forward", recorded_forward)
    monkeypatch.setattr(Experts, "route", recorded_route)
    return seen


def test_padded_rows_leave_no_trace(engine, monkeypatch):
    """Pages, states, journals, rings and texts are those of the exact step, and the dummies' lengths stay 0."""
    launched, seen = TwiceLaunched(engine), watch_forwards(engine, monkeypatch)
    accepted = 0
    for _ in range(NUM_STEPS):
        accepted += sum(tokens.accepted for tokens in engine.step())

    assert len(seen) == launched.num_padded > NUM_STEPS // 2
    assert {int((batch.seats == 0).sum()) for batch in seen} == {NUM_INERT}
    assert accepted > 0 or engine.executor.proposer is None
    if engine.executor.memory.states is not None:
        assert max(int(batch.state.snapshot_rows.max()) for batch in seen) > 0, "no page's end was crossed"
