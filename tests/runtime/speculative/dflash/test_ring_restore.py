"""A ring rebuilt from the pages equals the one that was lost, bit for bit, and so does the block it drafts."""

from __future__ import annotations

import pytest
import torch
from dflash_pairs import Harness, TableTarget, draft_content, oracle_draft, our_draft
from no_reads import forbid_reads

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.context_rows import TILE_ROWS, ContextProjection, context_keys_values
from paceline_runtime.layers.weights.dense import DenseWeight

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def harness(request: pytest.FixtureRequest) -> Harness:
    """A proposer with 4 request rows and a window of 100, in each dtype an engine runs in."""
    content = draft_content(sliding_window=100)
    return Harness(
        our_draft(oracle_draft(content), content, request.param), TableTarget(48, 96, request.param), 7, num_pages=80
    )


def features(num_rows: int, harness: Harness) -> torch.Tensor:
    """Made-up outputs of the three tapped layers."""
    return torch.randn(num_rows, 3, 48).to(harness.plane.dtype)


def assert_same_draft(harness: Harness, row: int, other: int, length: int) -> None:
    """Two rows draft the same block bitwise: tokens, candidates and q."""
    one, two = (harness.propose(r, 17, length, temperature=0.8, seed=5) for r in (row, other))

    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.candidates, two.candidates)
    assert torch.equal(one.q, two.q)


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 63, 64, 65, 99, 100, 101, 230])
def test_restored_row_drafts_as_the_prefilled_one(harness: Harness, length: int) -> None:
    """A preempted request whose pages are hit again drafts what it would have drafted."""
    harness.prefill(1, range(1, 9), 0, features(length, harness))

    harness.proposer.on_restore(2, torch.arange(1, 9), length)

    assert_same_draft(harness, 1, 2, length)


@torch.no_grad()
def test_prompt_that_parts_inside_a_page_restores_what_it_shares(harness: Harness) -> None:
    """A ring of shared pages and then chunks of its own equals one rebuilt from all of those pages."""
    prompt = features(215, harness)
    harness.prefill(1, range(1, 5), 0, prompt)

    harness.proposer.on_restore(2, torch.tensor([1, 2, 5, 6]), 2 * PAGE_TOKENS)
    harness.prefill(2, [1, 2, 5, 6], 128, torch.cat((prompt[128:150], features(42, harness))))
    harness.prefill(2, [1, 2, 5, 6], 192, features(23, harness))
    harness.proposer.on_restore(3, torch.tensor([1, 2, 5, 6]), 215)

    assert_same_draft(harness, 2, 3, 215)
    assert not torch.equal(harness.propose(1, 17, 215, 0.8, 5).q, harness.propose(2, 17, 215, 0.8, 5).q)


@torch.no_grad()
def test_ring_after_2400_decoded_tokens_is_rebuilt_from_pages(harness: Harness) -> None:
    """Verifies with rejected rows wrote the ring many times over; its pages alone give the same block."""
    pages, length, step = range(1, 45), 70, 0
    harness.prefill(1, pages, 0, features(length, harness))
    while length < 2470:
        harness.verify(1, pages, length, features(8, harness))
        length, step = length + 1 + step % 8, step + 1

    harness.proposer.on_restore(3, torch.tensor(pages), length)

    assert_same_draft(harness, 1, 3, length)
    assert length > 13 * harness.proposer.rings.size


@torch.no_grad()
def test_slots_outside_the_window_may_hold_anything(harness: Harness) -> None:
    """A reused row whose last owner left NaN drafts as a fresh one: nothing is ever reset."""
    harness.proposer.rings.keys[:, 2] = torch.nan
    harness.proposer.rings.values[:, 2] = torch.inf
    harness.prefill(2, range(1, 3), 0, features(40, harness))

    harness.proposer.on_release(2)
    harness.proposer.on_restore(2, torch.arange(1, 3), 40)
    harness.proposer.on_restore(1, torch.arange(1, 3), 40)

    assert_same_draft(harness, 1, 2, 40)


@torch.no_grad()
def test_rejected_rows_leave_no_trace(harness: Harness) -> None:
    """What a verify wrote past the accepted rows is not seen, in the ring or after a restore."""
    accepted, rejected = features(3, harness), features(5, harness)
    for row, tail in ((1, rejected), (2, features(5, harness))):
        harness.prefill(row, range(1 + 4 * row, 5 + 4 * row), 0, torch.ones(120, 3, 48, dtype=harness.plane.dtype))
        harness.verify(row, range(1 + 4 * row, 5 + 4 * row), 120, torch.cat((accepted, tail)))

    assert_same_draft(harness, 1, 2, 123)


@torch.no_grad()
def test_inert_rows_touch_only_the_dummies(harness: Harness) -> None:
    """Row 0 and page 0 take what padded rows write; no other row or page changes."""
    harness.prefill(1, range(1, 3), 0, features(80, harness))
    keys, plane = harness.proposer.rings.keys.clone(), harness.plane.clone()

    harness.verify(0, [0], 0, features(8, harness))
    harness.propose(0, 0, 0)

    assert torch.equal(harness.proposer.rings.keys[:, 1:], keys[:, 1:])
    assert torch.equal(harness.plane[1:], plane[1:])
    assert not torch.equal(harness.proposer.rings.keys[:, 0], keys[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("shape", [(48, 2, 2, 16), (33, 1, 1, 6), (512, 3, 4, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_projection_does_not_depend_on_the_rows_beside(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """Keys and values of a row are the same bits wherever it stands in a call of any size."""
    hidden, layers, heads, head_dim = shape
    projection = ContextProjection(
        DenseWeight(torch.randn(layers * 2 * heads * head_dim, hidden, dtype=dtype)).matmul,
        torch.rand(layers, head_dim, dtype=dtype),
        torch.rand(head_dim // 2),
        1e-6,
    )
    context, positions = torch.randn(200, hidden, dtype=dtype), torch.randint(0, 200_000, (200,))
    keys, values = context_keys_values(context, positions, projection)

    for offset in (0, 1, 17, 63):
        for num_rows in (1, 8, 63, TILE_ROWS, 100):
            rows = slice(offset, offset + num_rows)
            some = context_keys_values(context[rows], positions[rows], projection)
            assert torch.equal(some[0], keys[rows])
            assert torch.equal(some[1], values[rows])


@torch.no_grad()
def test_nothing_is_read_back_while_a_step_is_launched(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sink, rows and proposal work with reads of tensors forbidden."""
    forbid_reads(monkeypatch)
    harness.prefill(1, range(1, 3), 0, features(70, harness))
    harness.verify(1, range(1, 3), 70, features(8, harness))

    proposal = harness.propose(1, 5, 71, temperature=1.0)

    monkeypatch.undo()
    assert proposal.tokens.shape == (1, 7)
