"""From who decodes to what a step reads: the inputs of a draft, and those of the verify over [pending, drafts].

The device's programs call it at the start of both. It refuses to know who drafted, and what a row is for.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.seat_tables import SeatTables
from paceline_kernels.step_inputs import reference
from paceline_kernels.step_inputs.reference import Choices, DraftRows, VerifyRows

__all__ = ["Choices", "DraftRows", "VerifyRows", "draft_inputs", "verify_inputs"]


def draft_inputs(
    seats: torch.Tensor, tables: SeatTables, choices: Choices, num_pages: int, *, backend: Backend = Backend.AUTO
) -> DraftRows:
    """What a draft for the requests in `seats` int64 [B] reads, with the first `num_pages` columns of the page table."""
    if runs_kernel(backend, seats.device):
        from paceline_kernels.step_inputs import kernel

        return kernel.draft_inputs(seats, tables, choices, num_pages)
    return reference.draft_inputs(seats, tables, choices, num_pages)


def verify_inputs(
    seats: torch.Tensor,
    drafts: torch.Tensor,
    num_tokens: torch.Tensor | None,
    tables: SeatTables,
    num_pages: int,
    *,
    backend: Backend = Backend.AUTO,
) -> VerifyRows:
    """The rows of a verify of [pending, drafts] for the requests in `seats` int64 [B].

    drafts int64 [B, k]; num_tokens int64 [B]: how many leading drafts of each request to verify, None for all k;
    num_pages: see `draft_inputs`; more than there are mean all of them
    """
    if runs_kernel(backend, seats.device):
        from paceline_kernels.step_inputs import kernel

        return kernel.verify_inputs(seats, drafts, num_tokens, tables, num_pages)
    return reference.verify_inputs(seats, drafts, num_tokens, tables, num_pages)
