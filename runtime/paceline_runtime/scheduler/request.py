"""One request as the scheduler sees it. It holds plain values: no torch, no policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.scheduler.prefix import Node
from paceline_runtime.step import Variant
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
    up to 1 + k more. `started` is the number of the plan that gave it its seat, `num_pages_told` how many of its pages the
    device knows. `text` follows the answer of a request with stop strings.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    params: SamplingParams
    max_tokens: int
    key: int
    root: bytes
    variant: Variant
    num_generation_prompt: int = 0
    text: TextStream | None = None
    phase: Phase = Phase.WAITING
    seat: int = 0
    started: int = 0
    num_pages_told: int = 0
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
        variant=Variant.of(submit.params),
        num_generation_prompt=submit.num_generation_prompt,
    )
