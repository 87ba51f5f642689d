"""One step of the engine as plain values: what the host plans, and what comes back from the device.

The scheduler makes plans and `device` carries them out; a plan can be encoded, so another process than the one that made it can
carry it out. A row names its *seat*, a request's place among the running ones; what never changes while a request sits there
travels once, with its `Start`. It knows no request, no tensor and no policy.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from paceline_runtime.params import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, SamplingParams

SMALL_TOP_K = 64
"""A vocabulary is not sorted for a top-k up to this one: p is supported on so few ids that they are picked directly."""


class Start(msgspec.Struct, frozen=True):
    """A request takes a seat: its committed tokens, the pages of its cached prefix, and what its tokens are chosen by.

    `key` is the key of its random streams (seed and choice already mixed). `restore_slot` 0 means an empty state.
    """

    seat: int
    params: SamplingParams
    key: int
    num_prompt: int
    tokens: tuple[int, ...]
    num_cached: int
    pages: tuple[int, ...]
    state_slot: int
    restore_slot: int


class PageChange(msgspec.Struct, frozen=True):
    """The pages of a seat from the `first` on are these."""

    seat: int
    first: int
    pages: tuple[int, ...]


class PrefillRow(msgspec.Struct, frozen=True):
    """Tokens `start : start + num_tokens` of a seat; after its last chunk the next token is drawn if `samples`.

    `num_pages` hold what the chunk reads and writes; `snapshots` are (tokens into the chunk, state slot) pairs.
    """

    seat: int
    start: int
    num_tokens: int
    is_last: bool
    samples: bool
    num_pages: int
    snapshots: tuple[tuple[int, int], ...]


class DecodeRow(msgspec.Struct, frozen=True):
    """One decode step of a seat with `num_pages`; `snapshot_slot` takes the state at a page boundary in the replayed run."""

    seat: int
    num_pages: int
    snapshot_slot: int


class Flush(msgspec.Struct, frozen=True):
    """Replay a request that ended: write the state after `snapshot_rows` of its `replay_rows` rows to `snapshot_slot`."""

    seat: int
    state_slot: int
    replay_rows: int
    snapshot_rows: int
    snapshot_slot: int


class Variant(msgspec.Struct, frozen=True):
    """The work that choosing the tokens of some rows takes: a variant picks the path, never what a row gets.

    `support` bounds the ids that p of any sampled row is supported on (0: no bound), `num_biases` the biased tokens of any
    row; `num_logprobs` is the most alternatives that a row asks for, None where none asks for log probabilities.
    """

    is_sampled: bool = False
    support: int = 0
    has_penalties: bool = False
    num_biases: int = 0
    num_logprobs: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every row takes its likeliest token and asks for nothing else: the logits' order is all that is read."""
        return self == Variant()

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits are changed before a token is chosen."""
        return self.has_penalties or self.num_biases > 0

    def rounded(self) -> Variant:
        """One of the few variants that do all of this work: each of them needs a capture of its own."""
        return Variant(
            self.is_sampled,
            SMALL_TOP_K if self.support else 0,
            self.has_penalties,
            MAX_LOGIT_BIAS if self.num_biases else 0,
            None if self.num_logprobs is None else MAX_TOP_LOGPROBS,
        )

    @classmethod
    def of(cls, params: SamplingParams) -> Variant:
        """What one request takes."""
        is_sampled = not params.is_greedy
        support = params.top_k if is_sampled and params.top_k <= SMALL_TOP_K else 0
        return cls(is_sampled, support, params.has_penalties, len(params.logit_bias), params.logprobs)

    @classmethod
    def together(cls, variants: Iterable[Variant]) -> Variant:
        """What a batch of such rows takes."""
        some = set(variants)
        if len(some) == 1:
            return some.pop()
        supports = [one.support for one in some if one.is_sampled]
        logprobs = [one.num_logprobs for one in some if one.num_logprobs is not None]
        return cls(
            is_sampled=bool(supports),
            support=max(supports) if supports and min(supports) > 0 else 0,
            has_penalties=any(one.has_penalties for one in some),
            num_biases=max((one.num_biases for one in some), default=0),
            num_logprobs=max(logprobs) if logprobs else None,
        )


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one step does, in this order: flushes, releases, starts, page changes, decode with `depth` drafts a row, prefill.

    Plans are numbered in order. `decode_variant` covers all decode rows, `draw_variant` the prefill rows that draw.
    """

    number: int = 0
    flushes: tuple[Flush, ...] = ()
    released: tuple[int, ...] = ()
    starts: tuple[Start, ...] = ()
    pages: tuple[PageChange, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    prefill: tuple[PrefillRow, ...] = ()
    depth: int = 0
    decode_variant: Variant = Variant()
    draw_variant: Variant = Variant()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch. A start alone is work, even where the request finds all it needs still cached."""
        return not (self.flushes or self.released or self.starts or self.decode or self.prefill)


class RowResult(msgspec.Struct, frozen=True):
    """What a step gave one row: the committed run in order, and how many drafts were verified.

    `logprobs`: of each committed token, and ids and values of the likeliest ones.
    """

    token_ids: tuple[int, ...]
    num_drafted: int = 0
    logprobs: tuple[tuple[float, tuple[int, ...], tuple[float, ...]], ...] | None = None


class StepResult(msgspec.Struct, frozen=True):
    """Results in the order of the plan's rows; a prefill row without a draw has an empty run."""

    decode: tuple[RowResult, ...]
    prefill: tuple[RowResult, ...]


encode_plan = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(StepPlan).decode
