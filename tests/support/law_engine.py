"""Engines over tiny targets for the laws, and the reference they are compared with: one request, no cache, no batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from fake_capture import FakeCapture

from paceline_compat.memory.buffers import target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import Chunk, PrefillBatch, StateBatch
from paceline_runtime.cache.allocation import allocate, dtype_name
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.config import EngineConfig
from paceline_runtime.device.decode import Decoder
from paceline_runtime.device.graphs import CudaCapture, GraphDecoder
from paceline_runtime.device.inputs import EXACT, Buckets
from paceline_runtime.device.results import Handle
from paceline_runtime.engine.build import assemble
from paceline_runtime.engine.core import Engine
from paceline_runtime.messages import Submit, Tokens
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.judge import judge
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.step import StepPlan, decode_plan, encode_plan

MAX_MODEL_LEN = 448
DEFAULTS = dict(model_path="tiny", memory_bytes=1 << 30, max_running_req=4, overlap=False)
"""Fields of every engine's config; `--disable-cuda-graphs` of the GPU suite adds to them."""


PADDED = Buckets(rows=lambda count: count + 3 - count % 3, pages=lambda count: count + 8 - count % 8)
"""One to three inert rows more than there are requests, and as many pages for a while, so that steps are of few kinds."""


def make_engine(
    target: TargetModel,
    proposer: Proposer | None = None,
    *,
    max_model_len=MAX_MODEL_LEN,
    decode=None,
    accept=judge,
    buckets: Buckets | None = None,
    decoder: Decoder | None = None,
    as_bytes=True,
    **options,
) -> Engine:
    """An engine around a loaded target; `options` are EngineConfig's. Its plans reach the device `as_bytes`.

    One that runs ahead pads its batches and replays what it has captured, so a law stated for both lags is stated for both.
    """
    config = EngineConfig(**{**DEFAULTS, "max_model_len": max_model_len, **options})
    buckets = buckets or (PADDED if config.overlap else EXACT)
    if decoder is None and config.overlap and config.cuda_graphs:
        decoder = GraphDecoder(CudaCapture(target.device) if target.device.type == "cuda" else FakeCapture())
    engine = assemble(config, target, proposer, decode, accept=accept, buckets=buckets, decoder=decoder)
    if as_bytes:
        engine.executor.launch = ByBytes(engine.executor.launch)
    return engine


class ByBytes:
    """Launches what comes out of a plan's bytes, as another process would; `num_plans` counts them."""

    def __init__(self, launch) -> None:
        self._launch = launch
        self.num_plans = 0

    def __call__(self, plan: StepPlan) -> Handle:
        received = decode_plan(encode_plan(plan))
        assert plan == received
        assert plan is not received
        self.num_plans += 1
        return self._launch(received)


def record_plans(engine: Engine) -> list[StepPlan]:
    """Every plan the engine launches from now on, in order."""
    plans: list[StepPlan] = []
    launch = engine.executor.launch

    def recording(plan: StepPlan):
        plans.append(plan)
        return launch(plan)

    engine.executor.launch = recording
    return plans


class CyclingDepth:
    """Verifies 0, 1 .. k drafts in turn, whatever is measured."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps, self._count = num_steps, 0

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(range(self._num_steps + 1))

    def choose(self, num_decoding: int) -> int:
        self._count += 1
        return self._count % (self._num_steps + 1)

    def observed(self, depth, num_decoding, seconds, accepted_drafts) -> None:
        """Nothing to learn."""


@dataclass
class Answer:
    """What one request got, step by step."""

    token_ids: list[int] = field(default_factory=list)
    steps: list[Tokens] = field(default_factory=list)

    @property
    def finish_reason(self) -> str | None:
        return self.steps[-1].finish_reason if self.steps else None

    @property
    def accepted(self) -> list[int]:
        """Accepted drafts of each verify step."""
        return [tokens.accepted for tokens in self.steps if tokens.steps]

    @property
    def cached_tokens(self) -> int:
        return self.steps[-1].cached_tokens


def run(
    engine: Engine, prompts: dict[str, tuple[list[int], SamplingParams]], *, aborts: dict[str, int] | None = None, check=True
):
    """Submit everything at once and step to the end; `aborts` ends a request at its n-th token; `check` integrity each step."""
    answers = {name: Answer() for name in prompts}
    for name, (ids, params) in prompts.items():
        refused = engine.add(Submit(request_id=name, prompt_ids=ids, params=params))
        assert refused is None, refused
    while engine.has_work:
        for tokens in engine.step():
            answer = answers[tokens.request_id]
            answer.token_ids += tokens.token_ids
            answer.steps.append(tokens)
        for name, limit in (aborts or {}).items():
            if len(answers[name].token_ids) >= limit:
                engine.abort(name)
        if check:
            engine.check_integrity()
    return answers


def plain_tokens(target: TargetModel, prompt: list[int], num_tokens: int, *, adjust=None, eos_ids=()) -> list[int]:
    """Greedy continuation by recomputing the whole text for every token: no cache, no batch, no speculation.

    `adjust(logits [V], text, num_prompt)` may change the logits first (penalties, bias).
    """
    text = list(prompt)
    while len(text) < len(prompt) + num_tokens:
        logits = last_logits(target, text)
        if adjust is not None:
            logits = adjust(logits, text, len(prompt))
        text.append(int(logits.argmax()))
        if text[-1] in eos_ids:
            break
    return text[len(prompt) :]


@torch.inference_mode()
def last_logits(target: TargetModel, text: list[int]) -> torch.Tensor:
    """Logits [V] after `text`, computed in one piece into a cache of its own."""
    num_pages = 1 + -(-len(text) // PAGE_TOKENS)
    buffers = target_buffers(target.facts, dtype_name(target.dtype), 0)
    tensors = allocate(MemoryLayout(buffers, num_pages=num_pages, num_seats=2, num_slots=2), target.device)
    pages, states = PageStore(tensors), target.make_states(tensors)
    one, none = torch.tensor([1]), torch.tensor([0])
    positions = torch.arange(len(text))
    batch = PrefillBatch(
        ids=torch.tensor(text),
        positions=positions,
        cells=positions + PAGE_TOKENS,
        active=torch.ones(len(text), dtype=torch.bool),
        seats=one,
        page_table=torch.arange(1, num_pages)[None],
        lengths=none,
        chunks=(Chunk(0, len(text), 0),),
        state=StateBatch(one, none, none, none, one) if states is not None else None,
    )
    return target.logits(target.forward(batch, TargetMemory(pages, states))[-1:])[0]
