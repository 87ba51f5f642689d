"""The Triton verify of the gated delta rule against its reference, at odd shapes and under every kind of replay."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import random_rows, relative_rms, replaying

from paceline_kernels.backend import Backend
from paceline_kernels.gated_delta import DeltaRows, Journal, verify_delta

SHAPES = {
    "even": dict(key_heads=2, value_heads=4, key_dim=16, value_dim=16),
    "odd": dict(key_heads=1, value_heads=3, key_dim=17, value_dim=20),
    "blocks": dict(key_heads=2, value_heads=2, key_dim=8, value_dim=37),
}


def strided(rows: DeltaRows) -> DeltaRows:
    """q, k and v as the convolution gives them: neighbours in one row."""
    widths = [x[0, 0].numel() for x in (rows.q, rows.k, rows.v)]
    together = torch.cat([x.flatten(2) for x in (rows.q, rows.k, rows.v)], dim=-1)
    q, k, v = (part.view(x.shape) for part, x in zip(together.split(widths, -1), (rows.q, rows.k, rows.v), strict=True))
    return DeltaRows(q, k, v, rows.log_decay, rows.beta)


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_kernel_equals_reference_step_after_step(shape: dict[str, int], width: int) -> None:
    """States, journals, snapshots and outputs, with no, some and all rows replayed; poison stays where nothing is read."""
    sizes = (shape["key_heads"], shape["key_dim"]), (shape["value_heads"], shape["value_dim"]), (shape["value_heads"],)
    states = torch.randn(7, shape["value_heads"], shape["key_dim"], shape["value_dim"])
    journal = Journal(*(torch.full((4, width, *size), torch.nan) for size in sizes))
    ours = states.clone(), Journal(*(x.clone() for x in (journal.keys, journal.values, journal.decays)))
    slots, kept = [3, 1, 5], torch.zeros(3, dtype=torch.int64)
    for step in range(3):
        rows = strided(random_rows(3, width, dtype=torch.float32, **shape))
        inside = torch.where(torch.tensor([True, False, True]), (kept + 1) // 2, 0)
        replay = replaying(slots, kept, inside, [6, 4, 2])
        expected = verify_delta(states, journal, replay, rows, backend=Backend.REFERENCE)

        out = verify_delta(*ours, replay, rows, backend=Backend.KERNEL)

        assert relative_rms(out, expected) < 1e-5
        for got, wanted in zip((ours[0][1:], *vars(ours[1]).values()), (states[1:], *vars(journal).values()), strict=True):
            written = got[1:] if got.shape[0] == 4 else got
            assert relative_rms(written, wanted[1:] if got.shape[0] == 4 else wanted) < 1e-5
        kept = (torch.arange(3) + step) % width + 1
    assert ours[1].keys[0].isnan().all(), "the dummy's journal was written"


@pytest.mark.parametrize(("width", "journal_rows"), [(3, 16), (3, 17), (8, 21), (9, 9)])
def test_a_verify_of_any_depth_finds_an_implementation(width: int, journal_rows: int) -> None:
    """Wide ones, and narrow ones beside a long journal, take the reference: adaptive depth verifies less than is kept."""
    shape = SHAPES["even"]
    sizes = (shape["key_heads"], shape["key_dim"]), (shape["value_heads"], shape["value_dim"]), (shape["value_heads"],)
    states = torch.randn(3, shape["value_heads"], shape["key_dim"], shape["value_dim"])
    journal = Journal(*(torch.randn(3, journal_rows, *size) * 0.1 for size in sizes))
    copy = states.clone(), Journal(*(x.clone() for x in (journal.keys, journal.values, journal.decays)))
    rows = strided(random_rows(2, width, dtype=torch.float32, **shape))
    replay = replaying([2, 1], torch.tensor([journal_rows, 1]), torch.tensor([0, 0]), [0, 0])

    out = verify_delta(*copy, replay, rows, backend=Backend.KERNEL)

    expected = verify_delta(states, journal, replay, rows, backend=Backend.REFERENCE)
    assert relative_rms(out, expected) < 1e-5
    assert relative_rms(copy[0][1:], states[1:]) < 1e-5
