"""One decode step of B requests, in two programs that can run, and be captured, one after the other: draft, then verify.

The executor calls it inside a launch. Both programs are functions of tensors: they read the inputs and everything by seat where
it lies, upload nothing, read nothing back, and make nothing of a size that the device would have to tell. The host picks the
path by what it knows: the batch's rows and pages, the depth, the variant. Rows of seat 0 are inert: they are computed and leave
no trace.
"""

from __future__ import annotations

from typing import Protocol

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import StateBatch, VerifyBatch
from paceline_runtime.device.inputs import DecodeInputs
from paceline_runtime.device.parts import Parts
from paceline_runtime.device.results import Outcome, outcome_of
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.sampling.judge import Texts
from paceline_runtime.speculative.base import DraftInputs, Proposal
from paceline_runtime.step import Variant


class Decoder(Protocol):
    """Runs decode steps: as they are (`EagerDecoder`), or as graphs that were captured before.

    `is_steady`: whether the last step took the time that the next one of its kind will take.
    """

    @property
    def is_steady(self) -> bool: ...

    def __call__(self, parts: Parts, inputs: DecodeInputs, depth: int, variant: Variant) -> Outcome:
        """One step that verifies `depth` drafts a row."""
        ...

    def forget(self) -> None:
        """Let go of whatever knows the caches by their place, before others are allocated."""
        ...


class EagerDecoder:
    """Launches every step anew."""

    is_steady = True

    def __call__(self, parts: Parts, inputs: DecodeInputs, depth: int, variant: Variant) -> Outcome:
        """One step that verifies `depth` drafts a row."""
        proposal = draft(parts, inputs).first(depth) if depth else no_drafts(inputs.seats)
        return verify(parts, inputs, proposal, variant)

    def forget(self) -> None:
        """Nothing is kept."""


def draft(parts: Parts, inputs: DecodeInputs) -> Proposal:
    """Drafts for all rows, as many as the proposer is made for: a draft's rows depend on their number."""
    assert parts.proposer is not None, "somebody has to draft"
    seats, buffers = inputs.seats, parts.seats
    params = buffers.params.of(seats, Variant())
    return parts.proposer.propose(
        DraftInputs(
            seats=seats,
            pending=buffers.pending(seats),
            lengths=buffers.lengths[seats],
            history=buffers.history,
            page_table=buffers.pages_of(seats, inputs.num_pages),
            temperature=torch.where(params.greedy, 0.0, params.temperature),
            seeds=params.keys,
        )
    )


def no_drafts(seats: torch.Tensor) -> Proposal:
    """What is verified where nothing was drafted: the pending token alone."""
    return Proposal(torch.empty((len(seats), 0), dtype=torch.int64, device=seats.device))


def verify(parts: Parts, inputs: DecodeInputs, proposal: Proposal, variant: Variant) -> Outcome:
    """One forward over [pending, drafts], what is accepted of it, and its commit to the buffers by seat."""
    seats, buffers = inputs.seats, parts.seats
    lengths = buffers.lengths[seats]
    num_verified = _num_verified(parts, seats, lengths, proposal)
    batch = _batch(parts, inputs, lengths, proposal, num_verified)
    logits = parts.logits(parts.forward(batch)).view(len(seats), batch.width, -1)
    params = buffers.params.of(seats, variant)
    said = parts.accept(logits, proposal, num_verified, Texts(buffers.history, seats, lengths), params)
    accepted = Accepted(said.run, torch.where(seats > 0, said.num_tokens, 0))
    buffers.append(seats, accepted.run, accepted.num_tokens)
    return outcome_of(logits, accepted, num_verified, variant)


def _num_verified(parts: Parts, seats: torch.Tensor, lengths: torch.Tensor, proposal: Proposal) -> torch.Tensor:
    """How many leading drafts of each row to verify: what was proposed, and what the context still holds."""
    count = (parts.seats.max_model_len - 1 - lengths).clamp(min=0, max=proposal.tokens.shape[1])
    if proposal.num_tokens is not None:
        count = torch.minimum(count, proposal.num_tokens)
    return torch.where(seats > 0, count, 0)


def _batch(
    parts: Parts, inputs: DecodeInputs, lengths: torch.Tensor, proposal: Proposal, num_verified: torch.Tensor
) -> VerifyBatch:
    seats, limit = inputs.seats, parts.seats.max_model_len
    table = parts.seats.pages_of(seats, inputs.num_pages)
    ids = torch.cat([parts.seats.pending(seats)[:, None], proposal.tokens], dim=1)
    columns = torch.arange(ids.shape[1], device=seats.device)
    positions = lengths[:, None] + columns
    active = (columns <= num_verified[:, None]) & (positions < limit) & (seats > 0)[:, None]
    return VerifyBatch(
        ids=ids.flatten(),
        positions=positions.clamp(max=limit - 1).flatten(),
        cells=_cells(table, positions, active).flatten(),
        active=active.flatten(),
        seats=seats,
        page_table=table,
        lengths=lengths,
        width=ids.shape[1],
        state=_state_batch(parts, inputs, lengths),
    )


def _state_batch(parts: Parts, inputs: DecodeInputs, lengths: torch.Tensor) -> StateBatch | None:
    """What the last verify left to replay, and where in it a page boundary lies."""
    if parts.memory.states is None:
        return None
    seats = inputs.seats
    replay = parts.seats.replay[seats]
    crossed = lengths - lengths % PAGE_TOKENS - (lengths - replay)
    return StateBatch(parts.seats.state_slots[seats], replay, crossed.clamp(min=0), inputs.snapshot_slots, seats)


def _cells(table: torch.Tensor, positions: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Cell of each row [B, W]; inert rows go to the dummy page, each column to a place of its own."""
    pages = table.gather(1, (positions // PAGE_TOKENS).clamp(max=table.shape[1] - 1))
    return torch.where(active, pages * PAGE_TOKENS, 0) + positions % PAGE_TOKENS
