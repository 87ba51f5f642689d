"""Whatever a rebuild is asked for, the engine lives: what is stated is bounded by what is there, and what fails is undone."""

import subprocess
import sys
import weakref

import pytest
import torch
from law_engine import make_engine, run
from tiny_models import save_tiny

from paceline_runtime.cache import allocation
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.config import EngineConfig
from paceline_runtime.device.seats import SeatBuffers
from paceline_runtime.engine import build, memory
from paceline_runtime.engine.build import build_engine
from paceline_runtime.messages import Rebuild
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

THERE = 64 << 20
PROMPT = {"one": ([7, 3, 9, 11, 5, 2] * 25, SamplingParams(max_tokens=40, ignore_eos=True))}
BEYOND = [
    (dict(memory_bytes=1 << 50), "memory_bytes"),
    (dict(memory_bytes=1 << 62, num_pages=10**7), "memory_bytes"),
    (dict(num_pages=10**7), "num_pages"),
    (dict(num_pages=2**62), "num_pages"),
    (dict(memory_bytes=THERE // 2, num_pages=10**7), "num_pages"),
]


@pytest.fixture
def engine(target, monkeypatch):
    """An engine on a machine that has 64 MiB left, whose cache holds a prefix."""
    engine = make_engine(target, NgramProposer(3), num_pages=12, memory_bytes=None)
    monkeypatch.setattr(memory, "host_free_bytes", lambda: THERE)
    run(engine, PROMPT)
    return engine


@pytest.mark.parametrize(("sizes", "field"), BEYOND)
def test_what_is_stated_is_bounded_by_what_is_there(engine, sizes, field):
    """The field is named, and nothing was freed: the cached prefix is still found."""
    rebuilt = engine.rebuild(Rebuild(**sizes))

    assert (field, 12, False) == (rebuilt.param, rebuilt.num_pages, rebuilt.is_busy)
    assert "MiB" in rebuilt.error
    assert 128 == run(engine, PROMPT)["one"].cached_tokens


def test_what_the_old_cache_gives_back_counts(engine, monkeypatch):
    """Where nothing else is left, the cache can still be given the size that it has, and no page more."""
    target = engine.executor.target
    plan = memory.plan_memory(EngineConfig(model_path="tiny", max_model_len=448, num_pages=12), target, NgramProposer(3))
    temporary_bytes = plan.total_bytes - target.memory_bytes() - plan.layout.num_bytes()
    monkeypatch.setattr(memory, "host_free_bytes", lambda: temporary_bytes)

    assert "13 pages do not fit" in engine.rebuild(Rebuild(num_pages=13)).error
    assert engine.rebuild(Rebuild(num_pages=12)).error is None


def test_a_stated_memory_beyond_what_is_there_is_refused_before_loading(tmp_path, monkeypatch):
    """With dummy weights too, where nothing else is looked at before."""
    path = str(save_tiny("llama", tmp_path))
    monkeypatch.setattr(build, "load_target", lambda *args, **kwargs: pytest.fail("it was loaded"))
    monkeypatch.setattr(memory, "host_free_bytes", lambda: THERE)
    for dummy in (False, True):
        with pytest.raises(ValueError, match=r"--memory-bytes states 1,024 MiB, but there are 64 MiB.*lower it"):
            build_engine(EngineConfig(model_path=path, memory_bytes=1 << 30, dummy_weights=dummy))


def test_a_budget_that_became_too_large_is_what_is_left(target, monkeypatch):
    """Between the first look and the plan others may have taken memory: the plan has less, and pages are not promised."""
    options = dict(num_pages=None, memory_bytes=1 << 30)
    ample = make_engine(target, **options)
    monkeypatch.setattr(memory, "host_free_bytes", lambda: ample.executor.memory.pages.memory_bytes() // 2)
    tight = make_engine(target, max_model_len=64, max_prefill_tokens=64, **options)

    assert tight.stats().num_pages < ample.stats().num_pages
    assert tight.executor.memory.pages.memory_bytes() < ample.executor.memory.pages.memory_bytes() // 2


class Failing:
    """Stands for an allocation: makes things until told to fail, and keeps no hold of what it made."""

    def __init__(self, make, error):
        self.make, self.error, self.failures, self.made = make, error, 0, []

    def __call__(self, *args, **sizes):
        made = self.make(*args, **sizes)
        self.made.append(weakref.ref(made))
        if self.failures:
            self.failures -= 1
            raise type(self.error)(*self.error.args)  # an error that was raised keeps the frames it came through
        return made


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.\nException raised from ..."),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["pages", "seats", "proposer"])
def test_a_failed_allocation_brings_the_old_sizes_back(engine, monkeypatch, place, error):
    """Wherever it fails. The text stays, cached prefixes are gone with their pages, and what was taken is given back."""
    owner, name, make = {
        "pages": (build, "PageStore", PageStore),
        "seats": (build, "SeatBuffers", SeatBuffers),
        "proposer": (engine.executor.proposer, "bind", lambda tensors: set()),
    }[place]
    failing = Failing(make, error)
    monkeypatch.setattr(owner, name, failing)
    before = run(engine, PROMPT)["one"]
    failing.failures = 1
    rebuilt = engine.rebuild(Rebuild(num_pages=14))
    again = run(engine, PROMPT)["one"]

    assert ("num_pages", 12) == (rebuilt.param, rebuilt.num_pages)
    assert "cannot be had" in rebuilt.error
    assert "\n" not in rebuilt.error
    assert 13 == engine.executor.memory.pages.num_pages
    assert (before.token_ids, 0) == (again.token_ids, again.cached_tokens)
    assert 128 == before.cached_tokens
    assert 2 == len(failing.made)
    assert failing.made[0]() is None
    assert (14, None) == (engine.rebuild(Rebuild(num_pages=14)).num_pages, None)
    engine.check_integrity()


def test_what_was_taken_before_an_allocation_failed_is_given_back(engine, monkeypatch):
    """All buffers before the one that fails are gone when those of the old sizes are made."""
    make, made, left = allocation._zeros, [], []

    def failing_at_the_last(buffer, shape, device):
        if buffer.name == "keys":
            left.append([ref() is not None for ref in made])
        made.append(weakref.ref(tensor := make(buffer, shape, device)))
        if buffer.name == "bias_values" and len(left) == 1:
            raise MemoryError
        return tensor

    monkeypatch.setattr(allocation, "_zeros", failing_at_the_last)
    rebuilt = engine.rebuild(Rebuild(num_pages=14))

    assert ("num_pages", 12) == (rebuilt.param, rebuilt.num_pages)
    assert [[], [False] * (len(made) // 2)] == left
    assert len(made) > 10


def test_an_engine_that_cannot_even_have_the_old_cache_ends(engine, monkeypatch):
    """It must not go on without one: the process ends with a reason, and another takes its place."""
    failing = Failing(PageStore, MemoryError())
    failing.failures = 2
    monkeypatch.setattr(build, "PageStore", failing)

    with pytest.raises(RuntimeError, match="left without a cache"):
        engine.rebuild(Rebuild(num_pages=14))


def test_memory_that_the_system_refuses_leaves_a_process_that_answers(tmp_path):
    """For real: under a limit of its address space, which no plan knows of, torch cannot have what was planned."""
    path = save_tiny("qwen3", tmp_path, dtype=torch.float32)
    program = f"""
import resource
from paceline_runtime import LLM, SamplingParams
llm = LLM({str(path)!r}, device="cpu", max_model_len=200, num_pages=8, threads=1)
ask = lambda: llm.generate([[3] * 70], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids
before = ask()
page_bytes = llm.engine.executor.memory.pages.memory_bytes() // 9
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    llm.rebuild_cache(num_pages=(256 << 20) // page_bytes)
except ValueError as error:
    assert "cannot be had" in str(error), error
    assert llm.engine.stats().num_pages == 8
    assert ask() == before
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "refused\n" == done.stdout, done.stderr
