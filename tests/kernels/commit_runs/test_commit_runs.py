"""What a step decided goes to the tables by seat: Triton against plain torch, to the bit."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES
from seat_rows import LIMIT, tables_of

from paceline_kernels.backend import Backend
from paceline_kernels.commit_runs import commit_runs

LENGTHS = [1, 7, 8, 30, LIMIT - 11, LIMIT - 3, LIMIT - 1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [1, 2, 8, 11])
def test_runs_are_appended(width: int, device: str) -> None:
    """Any number of each, none of seat 0, which comes more than once; a run may lie in a wider table."""
    seats = torch.tensor([3, 0, 7, 1, 0, 6, 2], device=device)
    run = torch.randint(0, 1000, (7, width + 3), device=device)[:, :width]
    num_tokens = torch.tensor([width, width, 1, 1 + width // 2, 1, min(width, 3), width], device=device)
    found = {}
    for backend in (Backend.REFERENCE, Backend.KERNEL):
        torch.manual_seed(0)
        tables = tables_of(LENGTHS, device)
        before = tables.history.clone()
        committed = commit_runs(seats, run, num_tokens, tables, backend=backend)
        found[backend] = committed, tables.lengths, tables.replay, tables.history[1:]
        is_kept = (tables.history == before)[1:]

    assert all(torch.equal(one, other) for one, other in zip(*found.values(), strict=True))
    assert [0, 0] == found[Backend.KERNEL][0][[1, 4]].tolist()
    assert int(num_tokens[seats > 0].sum()) == int((~is_kept).sum()), "something else was written"


def test_the_dummy_stays_as_it_is() -> None:
    """Its history too: nothing of an inert row is written anywhere."""
    tables = tables_of([4], "cpu")
    before = tables.history.clone()
    commit_runs(
        torch.tensor([0, 0]), torch.ones((2, 3), dtype=torch.int64), torch.tensor([3, 1]), tables, backend=Backend.KERNEL
    )

    assert torch.equal(before, tables.history)
    assert [0, 4] == tables.lengths.tolist()
