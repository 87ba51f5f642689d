"""One memory plan before anything large is allocated: what each part takes, and how many K/V pages are left.

`paceline plan` and the start of the engine call it; it touches no device. A plan that does not fit is still a plan: it says
how many bytes are short, and which flags change that by how much.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline_compat.facts.records import DraftFacts, TargetFacts
from paceline_compat.memory import buffers
from paceline_compat.memory import parts as memory
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.rules.pair import default_num_drafts

FEW_STATE_SLOTS = "--num-state-slots must be at least twice --max-running-requests: a live state and the next snapshot each"


def no_state_slots(family: str | None) -> str:
    """What to tell who gives slots to a family without recurrent states."""
    return f"--num-state-slots has no meaning for a {family}: it keeps no recurrent states; drop it"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Serving options that memory depends on. None: derived from the checkpoints, or from what is left.

    `draft_dtype` is the dflash draft's where it is not the engine's.
    """

    algorithm: str = "off"
    num_drafts: int | None = None
    dtype: str = "bfloat16"
    draft_dtype: str | None = None
    max_running: int = 4
    max_model_len: int | None = None
    max_prefill_tokens: int = 2048
    num_pages: int | None = None
    num_state_slots: int | None = None
    graph_pool_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One part of the plan, with the sum behind it."""

    name: str
    num_bytes: int
    how: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes to allocate within `budget_bytes`. `num_pages` leaves out the dummy page, which its row includes."""

    budget_bytes: int
    rows: tuple[Row, ...]
    num_pages: int
    page_bytes: int
    num_state_slots: int
    max_model_len: int
    short_bytes: int = 0
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.short_bytes == 0

    @property
    def num_tokens(self) -> int:
        """Tokens whose K/V the pages hold, all requests and cached prefixes together."""
        return self.num_pages * memory.PAGE_TOKENS

    @property
    def total_bytes(self) -> int:
        return sum(row.num_bytes for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `paceline plan --json`."""
        derived = {"fits": self.fits, "num_tokens": self.num_tokens, "total_bytes": self.total_bytes}
        return asdict(self) | derived

    def to_text(self) -> str:
        """A table for a terminal, and what is short and what to do when it does not fit."""
        rows = [*self.rows, Row("together", self.total_bytes, f"of {_mib(self.budget_bytes)} MiB")]
        width = max(len(row.name) for row in rows)
        lines = [f"{row.name:<{width}}  {_mib(row.num_bytes):>12} MiB  {row.how}" for row in rows]
        if self.fits:
            context = f"context {self.max_model_len}, {self.num_state_slots} state slots"
            return "\n".join([*lines, f"{self.num_pages} pages, {self.num_tokens} tokens; {context}"])
        return "\n".join([*lines, f"does not fit: {_mib(self.short_bytes)} MiB are short", *self.remedies])


def plan(budget_bytes: int, target: TargetFacts, draft: DraftFacts | None, options: PlanOptions) -> Plan:
    """Plan `budget_bytes` of device memory. Explicit numbers are honoured, or the plan does not fit and says so."""
    sizes = _Sizes(target, draft if options.algorithm == "dflash" else None, options)
    fixed = sizes.fixed_rows()
    left = budget_bytes - sum(row.num_bytes for row in fixed)
    least = memory.pages_for(sizes.max_model_len)
    most = 2 * options.max_running * least
    affordable = left // sizes.page_bytes - 1
    num_pages = options.num_pages if options.num_pages is not None else max(least, min(most, affordable))
    pages = Row(buffers.PAGES, (num_pages + 1) * sizes.page_bytes, sizes.page_formula(num_pages))
    short = max(0, (max(num_pages, least) + 1) * sizes.page_bytes - left, (least - num_pages) * sizes.page_bytes)
    return Plan(
        budget_bytes=budget_bytes,
        rows=(*fixed, pages),
        num_pages=num_pages,
        page_bytes=sizes.page_bytes,
        num_state_slots=sizes.num_state_slots,
        max_model_len=sizes.max_model_len,
        short_bytes=short,
        remedies=sizes.remedies(left, affordable, short) if short else (),
    )


class _Sizes:
    """The parts of one plan, in terms of its options."""

    def __init__(self, target: TargetFacts, draft: DraftFacts | None, options: PlanOptions) -> None:
        self.target, self.draft, self.options = target, draft, options
        self.draft_dtype = options.draft_dtype or options.dtype
        self.dtype_bytes, self.draft_bytes = memory.DTYPE_BYTES[options.dtype], memory.DTYPE_BYTES[self.draft_dtype]
        self.max_model_len = options.max_model_len or target.max_positions
        given = options.num_drafts
        self.num_drafts = default_num_drafts(options.algorithm, draft) if given is None else given
        self.num_rows = options.max_running * (1 + self.num_drafts)
        self.num_state_slots = memory.num_state_slots(target, options.max_running, options.num_state_slots)
        self.layout = self._layout()
        self.page_bytes = self.layout.bytes_per("page")

    def _layout(self) -> MemoryLayout:
        """All buffers; how many pages they have is not known yet."""
        target, options = self.target, self.options
        own = buffers.dflash_buffers(self.draft, self.draft_dtype) if self.draft else ()
        if options.algorithm == "mtp":
            own = buffers.mtp_buffers(target, options.dtype, self.num_drafts)
        sizes = {"num_drafts": self.num_drafts, "max_model_len": self.max_model_len}
        every = buffers.engine_buffers(target, own, options.dtype, **sizes)
        return MemoryLayout(every, num_seats=options.max_running + 1, num_slots=self.num_state_slots)

    def fixed_rows(self) -> tuple[Row, ...]:
        """Everything but the pages; parts that this run does not have are left out."""
        rows = (*self._weights(), *self._draft_state(), *self._recurrent_state(), *self._temporaries())
        return tuple(row for row in rows if row.num_bytes)

    def page_formula(self, num_pages: int) -> str:
        return f"({num_pages} pages + 1 dummy) x {memory.PAGE_TOKENS} tokens x {self.layout.bytes_per('token')} bytes"

    def remedies(self, left: int, affordable: int, short: int) -> tuple[str, ...]:
        """What the user can change, each with the number that does it or the bytes it gives back."""
        out, given = [], self.options.num_pages
        least = memory.pages_for(self.max_model_len)
        if given is not None and least <= affordable:
            out.append(f"--num-pages between {least} and {affordable} fits")
        longest = self._longest_pages(left) if given is None else min(given, affordable)
        if 0 < longest < least:
            out.append(f"--max-model-len {longest * memory.PAGE_TOKENS} fits")
        if least <= affordable:
            return tuple(out)
        if self.options.max_running > 1:
            out.append(f"--max-running-requests: each one less gives back {_mib(self._request_bytes())} MiB")
        if self.draft is not None:
            out.append(f"--speculative-algorithm ngram gives back {_mib(self._draft_bytes())} MiB")
        if (chunk := self.options.max_prefill_tokens) >= 2 * memory.PAGE_TOKENS:
            half = self._prefill_bytes(chunk - chunk // 2)
            out.append(f"--max-prefill-tokens {chunk // 2} gives back {_mib(half)} MiB")
        if self.options.graph_pool_bytes:
            out.append(f"--graph-pool: without CUDA graphs (on a CPU) 0 gives back {_mib(self.options.graph_pool_bytes)} MiB")
        return (*out, f"{_mib(short)} MiB more: a larger device, --memory-bytes or --memory-ratio (of paceline plan: --memory)")

    def _longest_pages(self, left: int) -> int:
        """Pages of the longest context that fits, its own share of the fixed parts shrunk with it."""
        page = self._context_bytes(memory.PAGE_TOKENS)
        return (left + self._context_bytes(self.max_model_len) - self.page_bytes) // (self.page_bytes + page)

    def _context_bytes(self, num_tokens: int) -> int:
        """What so many tokens of context add to the fixed parts."""
        longer, none = (MemoryLayout(buffers.seat_buffers(size, 0)).bytes_per("seat") for size in (num_tokens, 0))
        return (self.options.max_running + 1) * (longer - none) + self._gathered_bytes(num_tokens)

    def _weights(self) -> tuple[Row, ...]:
        count, size = f"values x {self.dtype_bytes} bytes ({self.options.dtype})", self.dtype_bytes
        rows = [Row("target weights", memory.target_weight_bytes(self.target, size), count)]
        if self.options.algorithm == "mtp":
            rows.append(Row("MTP head", memory.target_weight_bytes(self.target, size, "mtp"), count))
        if self.draft is not None:
            size = self.draft_bytes
            count = f"values x {size} bytes ({self.draft_dtype})"
            rows.append(Row("draft weights", memory.draft_weight_bytes(self.draft, size), count))
            rows.append(Row("draft codebooks", memory.codebook_bytes(self.draft, size), f"2 x vocabulary x rank, {count}"))
        return tuple(rows)

    def _draft_state(self) -> tuple[Row, ...]:
        running, names = self.options.max_running, (buffers.RINGS, buffers.MTP_ROWS)
        sizes = ((name, self.layout.num_bytes(name)) for name in names)
        return tuple(Row(name, size, f"({running} requests + 1 dummy) x {size // (running + 1)} bytes") for name, size in sizes)

    def _recurrent_state(self) -> tuple[Row, ...]:
        slots, rows = self.num_state_slots, self.num_rows + 1 + self.num_drafts
        states, journal = (self.layout.num_bytes(part) for part in (buffers.STATES, buffers.JOURNAL))
        return (
            Row(buffers.STATES, states, f"{slots} slots x {_mib(self.layout.bytes_per('slot'))} MiB"),
            Row(buffers.JOURNAL, journal, f"{rows} rows x {journal // rows} bytes"),
        )

    def _temporaries(self) -> tuple[Row, ...]:
        options, chunk = self.options, self.options.max_prefill_tokens
        seats = f"({options.max_running} requests + 1 dummy) x ids, page numbers and parameters"
        return (
            Row("logits", self._logits_bytes(self.num_rows), f"{self.num_rows} rows x vocabulary, and to draw from some"),
            Row("prefill temporaries", self._prefill_bytes(chunk), f"one chunk of {chunk} tokens"),
            Row("gathered K/V", self._gathered_bytes(self.max_model_len), "one layer's of a whole context"),
            Row(buffers.SEATS, self.layout.num_bytes(buffers.SEATS), seats),
            Row("graph pool", options.graph_pool_bytes, "as given"),
        )

    def _request_bytes(self) -> int:
        """What one running request less gives back."""
        num_slots = memory.SLOTS_PER_REQUEST if self.options.num_state_slots is None else 0
        logits = self._logits_bytes(self.num_rows) - self._logits_bytes(self.num_rows - 1 - self.num_drafts)
        return num_slots * self.layout.bytes_per("slot") + self.layout.bytes_per("seat") + logits

    def _prefill_bytes(self, chunk_tokens: int) -> int:
        tapped = memory.tapped_row_bytes(self.draft, self.draft_bytes) if self.draft else 0
        return memory.prefill_bytes(self.target, chunk_tokens, tapped, self.dtype_bytes)

    def _gathered_bytes(self, context_tokens: int) -> int:
        return memory.gathered_bytes(self.target, context_tokens, self.dtype_bytes)

    def _logits_bytes(self, num_rows: int) -> int:
        return memory.logits_bytes(num_rows, self.target.vocab_size, self.dtype_bytes)

    def _draft_bytes(self) -> int:
        assert self.draft is not None
        return self.draft.num_params * self.draft_bytes + self.layout.num_bytes(buffers.RINGS)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f}"
