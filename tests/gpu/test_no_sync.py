"""A launch waits for nothing: no copy to the host and no synchronization, in decode steps and prefills, for any algorithm."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from gpu_scale import random_dflash, save_predictable
from law_engine import make_engine
from torch.profiler import ProfilerActivity, profile, record_function

from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.mtp.load import load_mtp
from paceline_runtime.speculative.ngram import NgramProposer

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
PROPOSERS = {
    "off": lambda path, target: None,
    "ngram": lambda path, target: NgramProposer(3),
    "mtp": lambda path, target: load_mtp(target, 3, dummy=True),
    "dflash": lambda path, target: random_dflash(path, target, 7),
}
SAMPLED = (
    SamplingParams(ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=1, ignore_eos=True),
    SamplingParams(temperature=1.0, min_p=0.02, repetition_penalty=1.1, logit_bias={5: 1.0}, ignore_eos=True),
    SamplingParams(presence_penalty=0.5, logprobs=2, ignore_eos=True),
)


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5", "qwen3_5_moe"])
def saved(request, scale, tmp_path_factory):
    """A target and the folder it was saved in."""
    path = save_predictable(request.param, tmp_path_factory.mktemp("targets"), scale)
    return path, load_target(path, dtype=scale.dtype, device=scale.device)


@pytest.fixture(params=PROPOSERS)
def engine(request, saved, scale):
    """One step ahead, past its first steps, in which kernels are compiled; four decoding requests of all kinds."""
    path, target = saved
    if request.param == "mtp" and target.facts.family == "qwen3":
        pytest.skip("qwen3 models have no MTP head")
    proposer = PROPOSERS[request.param](path, target)
    options = dict(overlap=True, max_running_req=6, max_prefill_tokens=64, decode_prefill_tokens=64, memory_bytes=8 << 30)
    engine = make_engine(target, proposer, max_model_len=scale.pick(448, 2048), **options)
    for index, params in enumerate(SAMPLED):
        submit(engine, f"running-{index}", index, 20, params)
    submit(engine, "short", 9, 90, SamplingParams(max_tokens=4))
    for _ in range(8):
        engine.step()
    return engine


def submit(engine, name, seed, num_tokens, params):
    """A random prompt."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, engine.info.vocab_size, (num_tokens,), generator=generator).tolist()
    assert engine.add(Submit(request_id=name, prompt_ids=prompt, params=params)) is None


@contextmanager
def nothing_waits(device, monkeypatch):
    """Whatever would wait for the device raises: torch's own watch on a GPU, the reading methods on a CPU."""
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with monkeypatch.context() as patch:
        for name in READS:
            patch.setattr(torch.Tensor, name, _refuse(name))
        yield


def _refuse(name):
    def refuse(self, *args, **kwargs):
        raise AssertionError(f"launch reads the device: Tensor.{name}")

    return refuse


def watch(engine, around):
    """Wrap every launch from now on; returns the plans that were launched."""
    launch, plans = engine.executor.launch, []

    def watched(plan):
        plans.append(plan)
        with around():
            return launch(plan)

    engine.executor.launch = watched
    return plans


def test_launches_wait_for_nothing(engine, scale, monkeypatch, tell):
    """Decode steps alone and beside the chunks of a prompt, its first token, a release and a start."""
    plans = watch(engine, lambda: nothing_waits(scale.device, monkeypatch))
    submit(engine, "late", 10, 150, SamplingParams(max_tokens=6))
    for _ in range(14):
        engine.step()

    tell(launches=len(plans), with_prefill=sum(bool(plan.prefill) for plan in plans))
    assert sum(bool(plan.decode) and bool(plan.prefill) for plan in plans) >= 2
    assert any(plan.starts for plan in plans)
    assert any(plan.released for plan in plans)


def test_the_watch_itself_raises(scale, monkeypatch):
    """A read inside it is caught, so that silence means something."""
    tensor = torch.ones(2, device=scale.device)
    with pytest.raises((RuntimeError, AssertionError)), nothing_waits(scale.device, monkeypatch):
        tensor.sum().item()


def test_profile_shows_no_wait(engine, scale, tell):
    """The runtime's own record of a decode launch; a CPU has no such calls and shows the number of operations only."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if scale.is_cuda else [])]
    seen: Counter[str] = Counter()

    @contextmanager
    def profiled():
        with profile(activities=activities) as record, record_function("launch"):
            yield
        # The profiler itself waits for the device when it ends: only what began within the launch counts.
        span = next(event.time_range for event in record.events() if event.name == "launch")
        seen.update(e.name for e in record.events() if span.start <= e.time_range.start <= span.end)

    plans = watch(engine, profiled)
    engine.step()

    # A graph is one launch, whatever it holds.
    kernels = sum(count for name, count in seen.items() if "LaunchKernel" in name or "GraphLaunch" in name)
    tell(operations=sum(count for name, count in seen.items() if name.startswith("aten::")), kernels=kernels)
    assert plans[0].decode
    assert {name: seen[name] for name in WAITS if seen[name]} == {}
    assert not scale.is_cuda or kernels > 0
