"""What a step reads of its requests: Triton against plain torch, to the bit, wherever a request may stand."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from kernel_checks import DEVICES
from seat_rows import LIMIT, PAGE, tables_of

from paceline_kernels.backend import Backend
from paceline_kernels.step_inputs import Choices, draft_inputs, verify_inputs

LENGTHS = [1, 7, 8, 9, 16, 20, 33, LIMIT - 9, LIMIT - 4, LIMIT - 2, LIMIT - 1, LIMIT]
"""Both sides of a page's end, and of the context's."""
SEATS = [3, 0, 12, 1, 11, 2, 0, 10, 9, 8, 7, 6, 5, 4]
BOTH = (Backend.REFERENCE, Backend.KERNEL)


def assert_equal(expected, actual) -> None:
    """All tensors, their dtypes and shapes."""
    for field in fields(expected):
        one, other = getattr(expected, field.name), getattr(actual, field.name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), field.name
        assert torch.equal(one, other), field.name
        assert other.is_contiguous(), field.name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_pages", [1, 5, 11])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 11])
def test_rows_of_a_verify(width: int, adaptive: bool, num_pages: int, device: str) -> None:
    """Any width, with as many drafts as each request proposed; drafts may be the first columns of a wider table.

    More pages may be asked for than there are, and fewer than a request has.
    """
    tables, seats = tables_of(LENGTHS, device), torch.tensor(SEATS, device=device)
    drafts = torch.randint(0, 1000, (len(SEATS), 12), device=device)[:, : width - 1]
    num_tokens = torch.arange(len(SEATS), device=device) % width if adaptive else None

    expected, actual = (verify_inputs(seats, drafts, num_tokens, tables, num_pages, backend=backend) for backend in BOTH)

    assert_equal(expected, actual)


def test_what_the_rows_of_a_verify_are() -> None:
    """Pending token first; past the verified drafts, past the context and in seat 0 rows are inert, in the dummy page."""
    tables, seats = tables_of([PAGE - 1, LIMIT - 2, 12], "cpu"), torch.tensor([1, 2, 0, 3])
    drafts = torch.arange(8).view(4, 2) + 900
    rows = verify_inputs(seats, drafts, torch.tensor([2, 2, 2, 1]), tables, 8, backend=Backend.KERNEL)
    pending = [int(tables.history[seat, tables.lengths[seat]]) for seat in (1, 2, 3)]
    first, last, third = tables.page_table[1, :2].tolist(), int(tables.page_table[2, 7]), int(tables.page_table[3, 1])

    assert [pending[0], 900, 901] == rows.ids[:3].tolist()
    assert [pending[2], 906, 907] == rows.ids[9:].tolist()
    assert [2, 1, 0, 1] == rows.num_verified.tolist()
    assert [True] * 3 + [True, True, False] + [False] * 3 + [True, True, False] == rows.active.tolist()
    assert [7, 8, 9, LIMIT - 2, LIMIT - 1, LIMIT - 1] == rows.positions[:6].tolist()
    assert [first[0] * PAGE + 7, first[1] * PAGE, first[1] * PAGE + 1] == rows.cells[:3].tolist()
    assert [last * PAGE + 3, last * PAGE + 4, 5, 0, 1, 2] == rows.cells[3:9].tolist()
    assert [third * PAGE + 4, third * PAGE + 5, 6] == rows.cells[9:].tolist()


def test_a_replay_that_crosses_a_pages_end_says_where() -> None:
    """The state after the rows before the end is what a later request with the same prefix goes on from."""
    tables = tables_of([PAGE, PAGE + 1, PAGE + 2, PAGE + 5, 3], "cpu")
    tables.replay[1:] = torch.tensor([3, 3, 3, 3, 3])
    seats = torch.tensor([1, 2, 3, 4, 5])
    rows = verify_inputs(seats, torch.empty((5, 0), dtype=torch.int64), None, tables, 8, backend=Backend.KERNEL)

    assert [3, 2, 1, 0, 0] == rows.snapshot_rows.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_pages", [1023, 1024, 1025, 2500])
def test_long_page_tables(num_pages: int, device: str) -> None:
    """They are copied by several programs; a wider table than the request's own pages is one of dummies."""
    tables = tables_of([1025 * PAGE, 9, 2000 * PAGE + 5], device, limit=2500 * PAGE)
    tables.page_table[3] = torch.arange(2500, device=device) + 7
    seats, drafts = torch.tensor([3, 0, 1], device=device), torch.zeros((3, 3), dtype=torch.int64, device=device)

    assert_equal(*(verify_inputs(seats, drafts, None, tables, num_pages, backend=backend) for backend in BOTH))
    choices = Choices(*torch.zeros((2, 4), dtype=torch.int64, device=device), torch.ones(4, dtype=torch.float64, device=device))
    assert_equal(*(draft_inputs(seats, tables, choices, num_pages, backend=backend) for backend in BOTH))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_draft(device: str) -> None:
    """Greedy requests draft at temperature 0, whatever theirs is."""
    tables, seats, count = tables_of(LENGTHS, device), torch.tensor(SEATS, device=device), 1 + len(LENGTHS)
    greedy = torch.arange(count, device=device) % 3 // 2
    keys, temperature = torch.randint(-(1 << 62), 1 << 62, (count,)), torch.rand(count, dtype=torch.float64)
    choices = Choices(keys.to(device), greedy, temperature.to(device))

    expected, actual = (draft_inputs(seats, tables, choices, 12, backend=backend) for backend in BOTH)

    assert_equal(expected, actual)
    assert 0 < int((actual.temperature == 0).sum()) < len(SEATS)
