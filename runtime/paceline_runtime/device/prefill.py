"""Prompts: one chunk of each of some requests through the target, and the first token of those whose prompt ends in it.

The executor calls it inside a launch. It uploads what the host knows of the chunks, and reads nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import Chunk, PrefillBatch, StateBatch
from paceline_runtime.device.decode import no_drafts
from paceline_runtime.device.parts import Parts
from paceline_runtime.device.results import Outcome, outcome_of
from paceline_runtime.device.transfer import upload
from paceline_runtime.sampling.judge import Texts
from paceline_runtime.step import PrefillRow, Variant

Prefill = Callable[[Parts, Sequence[PrefillRow], Variant], Outcome | None]
"""What takes up the chunks of a step and draws the tokens after them: `prefill`, or what a measurement puts in its place."""


def prefill(parts: Parts, rows: Sequence[PrefillRow], variant: Variant) -> Outcome | None:
    """Compute the chunks; what came of the rows that draw a token, None when none does."""
    device = parts.seats.device
    batch = _batch(parts, rows)
    hidden = parts.forward(batch)
    parts.seats.lengths[batch.seats] = upload([row.start + row.num_tokens for row in rows], torch.int64, device)
    drawing = [(row.seat, chunk) for row, chunk in zip(rows, batch.chunks, strict=True) if row.samples]
    if not drawing:
        return None
    drawn = [[seat for seat, _ in drawing], [chunk.offset + chunk.num_tokens - 1 for _, chunk in drawing]]
    seats, lasts = upload(drawn, torch.int64, device)
    return _draw(parts, seats, parts.logits(hidden[lasts], variant)[:, None], variant)


def _draw(parts: Parts, seats: torch.Tensor, logits: torch.Tensor, variant: Variant) -> Outcome:
    """The first token after each prompt, from logits [B, 1, V]."""
    buffers, none = parts.seats, torch.zeros_like(seats)
    texts = Texts(buffers.history, seats, buffers.lengths[seats] - 1)
    accepted = parts.accept(logits, no_drafts(seats), none, texts, buffers.params.of(seats, variant))
    buffers.append_first(seats, accepted.run[:, 0])
    return outcome_of(logits, accepted, none, variant)


def _batch(parts: Parts, rows: Sequence[PrefillRow]) -> PrefillBatch:
    device, chunks = parts.seats.device, _chunks(rows)
    owners = [index for index, row in enumerate(rows) for _ in range(row.num_tokens)]
    places = [place for row in rows for place in range(row.start, row.start + row.num_tokens)]
    owner, positions = upload([owners, places], torch.int64, device)
    seats, starts = upload([[row.seat for row in rows], [row.start for row in rows]], torch.int64, device)
    table = parts.seats.pages_of(seats, max(row.num_pages for row in rows))
    state = None
    if parts.memory.states is not None:
        zeros = torch.zeros_like(seats)
        state = StateBatch(parts.seats.state_slots[seats], zeros, zeros, zeros, seats)
    return PrefillBatch(
        ids=parts.seats.history[seats[owner], positions],
        positions=positions,
        cells=table[owner, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
        active=torch.ones_like(positions, dtype=torch.bool),
        seats=seats,
        page_table=table,
        lengths=starts,
        chunks=chunks,
        state=state,
    )


def _chunks(rows: Sequence[PrefillRow]) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    offset = 0
    for row in rows:
        chunks.append(Chunk(offset, row.num_tokens, row.start, row.snapshots))
        offset += row.num_tokens
    return tuple(chunks)
