"""The gated delta rule: the chunked reference against the recurrence row by row, under every accept length."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import part, random_rows, relative_rms, replaying, step_by_step

from paceline_kernels.gated_delta import DeltaRows, Journal, prefill_delta, replay_delta, verify_delta

EXACT = 1e-12


def pool(num_slots: int, num_rows: int, like: DeltaRows) -> tuple[torch.Tensor, Journal]:
    """Random states and a journal poisoned with NaN: nothing may be read that no verify wrote."""
    (key_heads, key_dim), (value_heads, value_dim), dtype = like.k.shape[-2:], like.v.shape[-2:], like.log_decay.dtype
    poison = (
        torch.full((num_slots, num_rows, *shape), torch.nan, dtype=dtype)
        for shape in ((key_heads, key_dim), (value_heads, value_dim), (value_heads,))
    )
    return torch.randn(num_slots, value_heads, key_dim, value_dim, dtype=dtype), Journal(*poison)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("num_rows", [1, 5, 63, 64, 65, 130])
def test_prefill_is_the_recurrence(num_rows: int) -> None:
    """Across the borders of its chunks, from a state that is not empty."""
    rows = random_rows(num_rows)
    state = torch.randn(4, 8, 6, dtype=torch.float64)

    out, after = prefill_delta(rows, state)

    expected, states = step_by_step(rows, state)
    assert relative_rms(out, expected) < EXACT
    assert relative_rms(after, states[-1]) < EXACT


def test_prefill_cut_on_the_grid_is_bitwise_the_same() -> None:
    """A prompt in chunks equals the prompt in one piece."""
    rows = random_rows(150)
    state = torch.randn(4, 8, 6, dtype=torch.float64)

    whole, after = prefill_delta(rows, state)
    first, between = prefill_delta(part(rows, slice(0, 64)), state)
    second, end = prefill_delta(part(rows, slice(64, None)), between)

    assert torch.equal(whole, torch.cat((first, second)))
    assert torch.equal(after, end)


def test_extreme_decays_lose_nothing() -> None:
    """Sums of log decays far beyond what an exponential holds neither overflow nor turn into NaN."""
    rows = random_rows(100)
    rows = DeltaRows(rows.q, rows.k, rows.v, rows.log_decay * 100, rows.beta)
    state = torch.randn(4, 8, 6, dtype=torch.float64)

    out, after = prefill_delta(rows, state)

    expected, states = step_by_step(rows, state)
    assert relative_rms(out, expected) < EXACT
    assert relative_rms(after, states[-1]) < EXACT


@pytest.mark.parametrize("num_steps", [0, 1, 3, 7])
def test_every_accept_length_equals_the_recurrence(num_steps: int) -> None:
    """Blocks with 1 .. 1 + k rows kept, in several slots at once: outputs of each block, and the state it starts from."""
    width, num_slots = 1 + num_steps, 5
    slots = ints(3, 1, 4)
    start = random_rows(1)
    states, journal = pool(num_slots, width + 1, start)
    truth = [states[slot] for slot in slots]
    kept, expected_states = ints(0, 0, 0), [states[slot] for slot in slots]
    for step in range(2 * width + 1):
        block = random_rows(len(slots), width)
        out = verify_delta(states, journal, replaying(slots, kept), block)
        kept = (torch.arange(len(slots)) * 2 + step) % width + 1
        for b, slot in enumerate(slots):
            assert relative_rms(states[slot], expected_states[b]) < EXACT
            outs, after = step_by_step(part(block, b), truth[b])
            assert relative_rms(out[b], outs) < EXACT
            truth[b] = expected_states[b] = after[kept[b]]


def test_snapshots_are_the_states_inside_the_replayed_run() -> None:
    """A second state at any row of the run, the live state at its end, and no write where no snapshot is due."""
    slots, block = ints(1, 2, 3), random_rows(3, 8)
    states, journal = pool(8, 8, block)
    before = states.clone()
    verify_delta(states, journal, replaying(slots, [0, 0, 0]), block)

    after = replay_delta(states, journal, replaying(slots, [7, 4, 8], [3, 4, 0], [5, 6, 7]))

    for b, (rows, snapshot) in enumerate(((7, 3), (4, 4), (8, 0))):
        _, expected = step_by_step(part(block, b), before[b + 1])
        assert relative_rms(states[b + 1], expected[rows]) < EXACT
        assert torch.equal(after[b], states[b + 1])
        if snapshot:
            assert relative_rms(states[5 + b], expected[snapshot]) < EXACT
    assert torch.equal(states[7], before[7]), "a snapshot of 0 rows was written"
    assert torch.equal(states[4], before[4])


def test_a_replay_of_no_rows_changes_nothing() -> None:
    """Neither the state nor the journal's NaN gets in."""
    rows = random_rows(2, 3)
    states, journal = pool(4, 3, rows)
    before = states.clone()

    out = verify_delta(states, journal, replaying([2, 0], [0, 0], journals=[3, 0]), rows)

    assert torch.equal(states[1:], before[1:])
    assert relative_rms(out[0], step_by_step(part(rows, 0), before[2])[0]) < EXACT


def test_states_stay_in_float32_below_bfloat16_rows() -> None:
    """Rows in bf16 are raised before they are used: outputs are as near as bf16 allows, states much nearer."""
    rows = random_rows(2, 6, dtype=torch.float32)
    rows = DeltaRows(rows.q.bfloat16(), rows.k.bfloat16(), rows.v.bfloat16(), rows.log_decay, rows.beta)
    states, journal = pool(3, 6, rows)
    exact = DeltaRows(*(x.double() for x in (rows.q, rows.k, rows.v, rows.log_decay, rows.beta)))
    expected = [step_by_step(part(exact, b), states[b + 1].double()) for b in range(2)]

    out = verify_delta(states, journal, replaying([1, 2], [0, 0]), rows)
    replay_delta(states, journal, replaying([1, 2], [6, 2]))

    assert out.dtype == torch.bfloat16
    for b, kept in enumerate((6, 2)):
        assert relative_rms(out[b], expected[b][0]) < 4e-3
        assert relative_rms(states[b + 1], expected[b][1][kept]) < 1e-6
