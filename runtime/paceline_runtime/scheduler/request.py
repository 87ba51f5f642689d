"""One request as the scheduler sees it, and the plan of one step. Plain values; no torch, no policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.scheduler.prefix import Node
from paceline_runtime.text.stream import TextStream


class Phase(Enum):
    """Where a request is: queued, computing its prompt, generating, or over."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """A page boundary that a committed run crossed `num_rows` rows in; the launch that replays the run writes it to `slot`."""

    boundary: int
    slot: int
    num_rows: int
    is_launched: bool


@dataclass(slots=True, eq=False)
class Request:
    """A request from its admission to its end.

    `tokens` holds the prompt and every committed token; the last committed one is pending: its K/V do not exist yet.
    `num_computed` is the host's knowledge of how many tokens are in the cache; each step in flight (`num_in_flight`) may add
    up to 1 + k more. `text` follows the answer of a request with stop strings.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    max_tokens: int
    key: int
    root: bytes
    num_generation_prompt: int = 0
    text: TextStream | None = None
    phase: Phase = Phase.WAITING
    row: int = 0
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    can_publish: bool = True
    num_computed: int = 0
    num_in_flight: int = 0
    num_cached: int | None = None
    num_preemptions: int = 0
    state_slot: int = 0
    snapshot_target: int = 0
    branch_boundary: int = 0
    chunk_snapshots: list[tuple[int, int]] = field(default_factory=list)
    pending_snapshot: PendingSnapshot | None = None
    kept_snapshots: deque[Node] = field(default_factory=deque)

    @property
    def num_outputs(self) -> int:
        """Committed tokens after the prompt."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_to_prefill(self) -> int:
        """Tokens whose K/V a prefill computes: the whole prompt, or after a preemption all but the pending token."""
        return len(self.tokens) - 1 if self.num_outputs else self.num_prompt

    @property
    def is_over(self) -> bool:
        """Whether results of steps still in flight are to be dropped."""
        return self.phase is Phase.FINISHED


def make_request(submit: Submit, max_model_len: int, key: int, root: bytes) -> Request:
    """A queued request; `max_tokens` is bounded by what the context holds after the prompt."""
    room = max_model_len - len(submit.prompt_ids)
    wanted = submit.params.max_tokens
    return Request(
        id=submit.request_id,
        tokens=list(submit.prompt_ids),
        num_prompt=len(submit.prompt_ids),
        params=submit.params,
        max_tokens=room if wanted is None else min(wanted, room),
        key=key,
        root=root,
        num_generation_prompt=submit.num_generation_prompt,
    )


@dataclass(frozen=True, slots=True)
class Start:
    """A request takes a row: its tokens and the pages of its cached prefix. `restore_slot` 0 means an empty state."""

    request: Request
    row: int
    tokens: tuple[int, ...]
    num_cached: int
    pages: tuple[int, ...]
    state_slot: int
    restore_slot: int


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """Tokens `start : start + num_tokens` of a request; after its last chunk the next token is drawn if `samples`."""

    request: Request
    row: int
    start: int
    num_tokens: int
    is_last: bool
    samples: bool
    pages: tuple[int, ...]
    state_slot: int
    snapshots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One decode step of a request; `snapshot_slot` takes the state at a page boundary inside the replayed run."""

    request: Request
    row: int
    pages: tuple[int, ...]
    state_slot: int
    snapshot_slot: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Replay a request that ended: write the state after `snapshot_rows` of its `replay_rows` rows to `snapshot_slot`."""

    row: int
    state_slot: int
    replay_rows: int
    snapshot_rows: int
    snapshot_slot: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does, in this order: flushes, releases, starts, decode with `depth` drafts a row, prefill."""

    flushes: tuple[Flush, ...] = ()
    released: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()
    depth: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch. A start alone is work: a request may come back with all it needs still cached."""
        return not (self.flushes or self.released or self.starts or self.decode or self.prefill)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a step gave one row: the committed run in order, and how many drafts were verified and accepted."""

    token_ids: tuple[int, ...]
    num_drafted: int = 0
    logprobs: tuple[tuple[float, tuple[int, ...], tuple[float, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results in the order of the plan's rows; a prefill row without a draw has an empty run."""

    decode: tuple[RowResult, ...]
    prefill: tuple[RowResult, ...]
