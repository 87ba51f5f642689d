"""One decode step of B requests, in two programs that can run, and be captured, one after the other: draft, then verify.

The executor calls it inside a launch. Both programs are functions of tensors: they read the inputs and everything by seat where
it lies, upload nothing, read nothing back, and make nothing of a size that the device would have to tell. The host picks the
path by what it knows: the batch's rows and pages, the depth, the variant. Rows of seat 0 are inert: they are computed and leave
no trace.
"""

from __future__ import annotations

from typing import Protocol

import torch

from paceline_kernels.step_inputs import VerifyRows, draft_inputs, verify_inputs
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
    rows = draft_inputs(seats, buffers.tables, buffers.params.choices, inputs.num_pages)
    return parts.proposer.propose(
        DraftInputs(
            seats=seats,
            pending=rows.pending,
            lengths=rows.lengths,
            history=buffers.history,
            page_table=rows.page_table,
            temperature=rows.temperature,
            seeds=rows.keys,
        )
    )


def no_drafts(seats: torch.Tensor) -> Proposal:
    """What is verified where nothing was drafted: the pending token alone."""
    return Proposal(torch.empty((len(seats), 0), dtype=torch.int64, device=seats.device))


def verify(parts: Parts, inputs: DecodeInputs, proposal: Proposal, variant: Variant) -> Outcome:
    """One forward over [pending, drafts], what is accepted of it, and its commit to the buffers by seat."""
    seats, buffers = inputs.seats, parts.seats
    rows = verify_inputs(seats, proposal.tokens, proposal.num_tokens, buffers.tables, inputs.num_pages)
    batch = _batch(parts, inputs, rows, 1 + proposal.tokens.shape[1])
    logits = parts.logits(parts.forward(batch), variant).view(len(seats), batch.width, -1)
    params = buffers.params.of(seats, variant)
    said = parts.accept(logits, proposal, rows.num_verified, Texts(buffers.history, seats, rows.lengths), params)
    accepted = Accepted(said.run, buffers.append(seats, said.run, said.num_tokens))
    return outcome_of(logits, accepted, rows.num_verified, variant)


def _batch(parts: Parts, inputs: DecodeInputs, rows: VerifyRows, width: int) -> VerifyBatch:
    state = None
    if parts.memory.states is not None:
        state = StateBatch(rows.state_slots, rows.replay, rows.snapshot_rows, inputs.snapshot_slots, inputs.seats)
    return VerifyBatch(
        ids=rows.ids,
        positions=rows.positions,
        cells=rows.cells,
        active=rows.active,
        seats=inputs.seats,
        page_table=rows.page_table,
        lengths=rows.lengths,
        width=width,
        state=state,
    )
