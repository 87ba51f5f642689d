"""From a configuration to a running engine: load, plan memory, allocate, wire up, warm up.

The engine process and `LLM` call it. It holds no policy of its own beyond the order of these steps and the defaults that
depend on the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from paceline_compat.memory.parts import pages_for
from paceline_runtime.cache.allocation import allocate, torch_dtype
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.config import EngineConfig
from paceline_runtime.device.decode import Decoder
from paceline_runtime.device.executor import Executor
from paceline_runtime.device.graphs import CudaCapture, GraphDecoder, graph_buckets
from paceline_runtime.device.inputs import EXACT, Buckets
from paceline_runtime.device.prefill import Prefill, prefill
from paceline_runtime.device.seats import SeatBuffers
from paceline_runtime.engine.budget import PrefillBudget
from paceline_runtime.engine.core import Engine, EngineInfo, Pace
from paceline_runtime.engine.depth import AdaptiveDepth, FixedDepth
from paceline_runtime.engine.memory import (
    MemoryPlan,
    SizeError,
    available_bytes,
    budget_bytes,
    captures,
    plan_memory,
    refuse_more_than_there_is,
)
from paceline_runtime.engine.preflight import read_pair
from paceline_runtime.engine.warmup import rehearse, warm_up
from paceline_runtime.layers.parameters import all_dense
from paceline_runtime.layers.tiles import device_name, tiles_for
from paceline_runtime.loaders import load_target
from paceline_runtime.messages import Rebuild
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.sampling.judge import Accept, judge
from paceline_runtime.scheduler.room import SchedulerConfig
from paceline_runtime.scheduler.scheduler import Scheduler
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.speculative.registry import load_proposer
from paceline_runtime.text.detokenizer import Decode

Progress = Callable[[str, float], None]


def build_engine(config: EngineConfig, on_progress: Progress | None = None, decode: Decode | None = None) -> Engine:
    """Load everything `config` names and return an engine that has decoded once.

    `decode` turns ids to text, for stop strings. Raises ValueError (or the loaders' own errors) with all that is wrong, and
    ConfigError for a file of tiles that cannot be used; nothing large is allocated before the memory plan says that it fits.
    """
    report = on_progress or (lambda phase, fraction: None)
    problems = config.problems()
    if problems:
        raise ValueError("; ".join(problems))
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    storage_of = all_dense(tiles_for(device_name(device), dtype, config.tiles))
    if config.memory_bytes is not None:
        refuse_more_than_there_is(config.memory_bytes, available_bytes(config, device=device))
    facts, draft = read_pair(config, dtype, device, budget_bytes(config, device=device))
    report("loading the target", 0.0)
    target = load_target(
        config.model_path,
        dtype=dtype,
        device=device,
        facts=facts,
        on_progress=lambda done, total: report("loading the target", 0.8 * done / max(total, 1)),
        dummy=config.dummy_weights,
        storage_of=storage_of,
    )
    report("loading the draft", 0.8)
    proposer = load_proposer(config, target, config.max_model_len or facts.max_positions, draft, storage_of)
    engine = assemble(config, target, proposer, decode)
    report("warming up", 0.9)
    warm_up(engine)
    if captures(config, device):
        report("capturing CUDA graphs", 0.95)
        rehearse(engine.executor, engine.depths, config.max_running_req)
    report("ready", 1.0)
    return engine


def assemble(
    config: EngineConfig,
    target: TargetModel,
    proposer: Proposer | None,
    decode: Decode | None = None,
    *,
    accept: Accept = judge,
    buckets: Buckets | None = None,
    decoder: Decoder | None = None,
    prefill: Prefill = prefill,
    budget: PrefillBudget | None = None,
) -> Engine:
    """Plan memory, allocate it and wire an engine around a loaded target and proposer; the rest as `Executor`.

    `budget` is what a step may prefill, by default as many tokens as memory is planned for. On a GPU decode steps are captured
    as CUDA graphs, unless the configuration or a given `decoder` says otherwise.
    """
    plan = plan_memory(config, target, proposer)
    if decoder is None and captures(config, target.device):
        decoder = GraphDecoder(CudaCapture(target.device))
        buckets = buckets or graph_buckets(config.max_running_req, pages_for(plan.max_model_len))
    executor = Executor(target, proposer, accept=accept, buckets=buckets or EXACT, decoder=decoder, prefill=prefill)
    _bind(executor, plan)
    num_drafts = executor.num_drafts
    info = EngineInfo(str(target.facts.family), target.facts.vocab_size, plan.max_model_len, plan.table())
    pace = Pace(
        budget or PrefillBudget(config.max_prefill_tokens, fixed_tokens=config.decode_prefill_tokens),
        AdaptiveDepth(num_drafts) if config.speculative_adaptive and num_drafts else FixedDepth(num_drafts),
        _lag(config, target),
    )
    scheduler = Scheduler(_scheduler_config(config, target, plan, num_drafts), decode)
    return Engine(scheduler, executor, info, pace, CacheResizer(config, plan), seed=config.seed)


def _bind(executor: Executor, plan: MemoryPlan) -> None:
    """Allocate what was planned, and hand it to its owners. SizeError when it cannot be had."""
    try:
        tensors = allocate(plan.layout, executor.target.device)
        if executor.proposer is not None:
            executor.proposer.bind(tensors)
        memory = TargetMemory(PageStore(tensors), executor.target.make_states(tensors))
        executor.bind(memory, SeatBuffers(tensors, plan.max_model_len))
    except (RuntimeError, MemoryError) as error:  # torch has no narrower one on a CPU
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SizeError("num_pages", f"the memory that was planned cannot be had, lower --num-pages: {reason}") from None


class CacheResizer:
    """Gives an idle engine another cache. Keeps what the present one was made of: later sizes start from it."""

    def __init__(self, config: EngineConfig, plan: MemoryPlan) -> None:
        self._config, self._plan = config, plan

    def __call__(self, engine: Engine, sizes: Rebuild) -> None:
        """Weights stay. SizeError, with a cache as large as before, when the new one cannot be.

        The old tensors are freed before new ones are taken: both need not fit together. So the plan is bounded by what is
        there now; should an allocation fail all the same, a cache of the old sizes is made anew.
        """
        given = {name: getattr(sizes, name) for name in sizes.__struct_fields__ if getattr(sizes, name) is not None}
        try:
            config, plan = self._planned(engine, given)
            self._fill(engine, config, plan)
        except SizeError as error:
            field, problem = error.field, str(error)
        else:
            self._config, self._plan = config, plan
            return
        # Only here is the error gone, and with it what its traceback held of the new tensors.
        if not engine.executor.has_caches:
            self._restore(engine)
        raise SizeError(field if field in given else next(iter(given), field), problem)

    def _planned(self, engine: Engine, given: Mapping[str, int]) -> tuple[EngineConfig, MemoryPlan]:
        """The configuration with the new sizes, and its plan. Nothing has changed when it raises."""
        executor, sizes = engine.executor, dict[str, Any](given)
        if "memory_bytes" in given:
            sizes.setdefault("num_pages", None)  # a number of pages from the start would outweigh the new budget
        config = replace(self._config, max_model_len=engine.info.max_model_len, **sizes)
        target, proposer, freed_bytes = executor.target, executor.proposer, self._plan.layout.num_bytes()
        if problems := config.problems():
            named = [name for name in given if f"--{name.replace('_', '-')} " in problems[0]]
            raise SizeError(named[0], "; ".join(problems))
        if "memory_bytes" in given:
            refuse_more_than_there_is(given["memory_bytes"], available_bytes(config, target, proposer, freed_bytes=freed_bytes))
        return config, plan_memory(config, target, proposer, freed_bytes=freed_bytes)

    def _restore(self, engine: Engine) -> None:
        """A cache of the old sizes again. Where that cannot be had either, nobody can go on: RuntimeError."""
        try:
            self._fill(engine, self._config, self._plan)
        except SizeError as error:
            raise RuntimeError(f"the engine is left without a cache: {error}") from None

    def _fill(self, engine: Engine, config: EngineConfig, plan: MemoryPlan) -> None:
        """Caches of a plan in place of those that there are, and a scheduler that knows of no cached prefix."""
        executor, decode = engine.executor, engine.scheduler.decode
        executor.release()
        _bind(executor, plan)
        scheduler = Scheduler(_scheduler_config(config, executor.target, plan, executor.num_drafts), decode)
        scheduler.count_from(engine.scheduler)
        engine.scheduler = scheduler
        engine.info = replace(engine.info, plan=plan.table())


def _scheduler_config(config: EngineConfig, target: TargetModel, plan: MemoryPlan, num_drafts: int) -> SchedulerConfig:
    return SchedulerConfig(
        num_pages=plan.layout.num_pages,
        max_running=config.max_running_req,
        max_model_len=plan.max_model_len,
        num_drafts=num_drafts,
        max_steps_in_flight=1 + _lag(config, target),
        num_state_slots=plan.layout.num_slots,
        use_prefix_cache=config.cache_type == "prefix",
        eos_ids=frozenset(target.facts.eos_token_ids),
    )


def _lag(config: EngineConfig, target: TargetModel) -> int:
    ahead = target.device.type == "cuda" if config.overlap is None else config.overlap
    return 1 if ahead else 0


def pick_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one. ValueError for what is no device, or not of this machine."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdigit() or name == kind):
        raise ValueError(f"--device must be auto, cpu, cuda, cuda:1 ..., got {name!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"--device {name}: this machine has {torch.cuda.device_count()} usable GPUs; choose one, or cpu or auto"
        )
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU and float32 on a CPU, where bfloat16 matmuls are emulated and slower."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch_dtype(name)
