"""Every accept length at every step leaves the states that step-by-step decoding leaves, to 1e-12 relative RMS.

Rejected drafts are wrong tokens, so whatever of them stayed behind would show. Compared are recurrent and convolution states,
K/V, the journal's kept rows and the logits; across page boundaries with snapshots there.
"""

from dataclasses import dataclass, field

import pytest
import torch
from gdn_recurrence import relative_rms
from hybrid_models import IDS, HybridRunner

from paceline_compat.memory.parts import PAGE_TOKENS

pytestmark = pytest.mark.usefixtures("no_grad")
EXACT = 1e-12
PROMPT = 57
"""Not on the grid: chunked and row-by-row prefills differ, and steps soon cross the boundary at 64."""


@dataclass
class StepByStep:
    """One request decoded token by token: states after n tokens, logits of and journal rows added by each, and its pages."""

    runner: HybridRunner
    states: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    journal: dict[int, list[tuple[torch.Tensor, ...]]] = field(default_factory=dict)


def journal_rows(runner, request, num_rows):
    """By layer: keys, corrected values, cumulated log decays and convolution inputs of a request's leading journal rows."""
    parts = [(*vars(layer.journal).values(), layer.conv_journal) for layer in runner.states.layers]
    return [tuple(part[request + 1, :num_rows].clone() for part in layer) for layer in parts]


@pytest.fixture(scope="module")
def by_step(hybrid):
    """The truth: no draft, nothing to reject."""
    truth = StepByStep(HybridRunner(hybrid))
    runner = truth.runner
    with torch.no_grad():
        runner.prefill((0, 0, IDS[:PROMPT]))
        truth.states[PROMPT] = runner.state_of(1)
        for position in range(PROMPT, len(IDS)):
            truth.logits[position] = runner.verify((0, position, [IDS[position]]))[0]
            truth.journal[position] = journal_rows(runner, 0, 1)
            runner.keep(0, 1)
            runner.flush(0, 0, 0)
            runner.keep(0, 0)
            truth.states[position + 1] = runner.state_of(1)
    return truth


def assert_equal_states(actual, expected):
    for got, wanted in zip(actual, expected, strict=True):
        assert relative_rms(got, wanted) < EXACT


def assert_equal_journals(runner, request, truth, start, num_rows):
    """Kept rows are those of the single steps; only their decays are cumulated from the block's first row."""
    for layer, ours in enumerate(journal_rows(runner, request, num_rows)):
        singles = zip(*(truth.journal[start + row][layer] for row in range(num_rows)), strict=True)
        keys, values, decays, inputs = (torch.cat(rows) for rows in singles)
        for got, expected in zip(ours, (keys, values, decays.cumsum(0), inputs), strict=True):
            assert relative_rms(got, expected) < EXACT


def block(position, width, num_right):
    """The pending token, right drafts, then wrong ones."""
    ids = IDS[position : position + width]
    return ids[:num_right] + [(token + 1) % 300 + 2 for token in ids[num_right:]]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_every_accept_length_at_every_step(hybrid, by_step, width):
    """Three requests beside each other; request r accepts lengths in its own order."""
    states = by_step.states
    runner = HybridRunner(hybrid, num_requests=3, num_snapshots=3)
    runner.prefill(*((request, 0, IDS[:PROMPT]) for request in range(3)))
    lengths, kept, seen, snapshots = [PROMPT] * 3, [0] * 3, set(), 0
    for step in range(4 * width):
        due = {}
        for request in range(3):
            inside = lengths[request] - lengths[request] % PAGE_TOKENS - (lengths[request] - kept[request])
            if kept[request] and 0 < inside <= kept[request]:
                due[request] = (inside, runner.snapshot_slot(request))
        starts = list(lengths)
        kept = [1 + (step + request * (1 + step // width)) % width for request in range(3)]
        rows = [(request, start, block(start, width, kept[request])) for request, start in enumerate(starts)]
        out = runner.verify(*rows, snapshots=due).view(3, width, -1)
        for request, (_, slot) in due.items():
            boundary = starts[request] - starts[request] % PAGE_TOKENS
            assert_equal_states(runner.state_of(slot), states[boundary])
            snapshots += 1
        for request in range(3):
            assert_equal_states(runner.state_of(request + 1), states[starts[request]])
            runner.keep(request, kept[request])
            lengths[request] += kept[request]
            seen.add((request, kept[request]))
            assert_equal_journals(runner, request, by_step, starts[request], kept[request])
            for row in range(kept[request]):
                assert relative_rms(out[request, row], by_step.logits[starts[request] + row]) < EXACT
        if max(lengths) + width > len(IDS):
            break
    assert {(request, length) for request in range(3) for length in range(1, width + 1)} == seen
    assert snapshots >= 3
    assert_pages_equal(runner, by_step.runner, lengths)
    for request in range(3):
        runner.flush(request, 0, 0)
        assert_equal_states(runner.state_of(request + 1), states[lengths[request]])


def assert_pages_equal(runner, truth, lengths):
    """K/V of every committed position."""
    for request, length in enumerate(lengths):
        positions = torch.arange(length)
        for kind in ("keys", "values"):
            for ours, theirs in zip(
                getattr(runner.cache.memory.pages, kind), getattr(truth.cache.memory.pages, kind), strict=True
            ):
                got = ours.flatten(0, 1)[runner.cache.cells(request, positions)]
                assert relative_rms(got, theirs.flatten(0, 1)[truth.cache.cells(0, positions)]) < EXACT


@pytest.mark.parametrize("kept", range(1, 9))
def test_a_flush_writes_the_state_and_the_snapshot_inside_the_run(hybrid, by_step, kept):
    """A request that ends has its accepted rows applied without computing new ones."""
    states = by_step.states
    runner = HybridRunner(hybrid)
    runner.prefill((0, 0, IDS[:PROMPT]))
    runner.verify((0, PROMPT, block(PROMPT, 8, kept)))
    runner.keep(0, kept)
    inside = PAGE_TOKENS - PROMPT if kept >= PAGE_TOKENS - PROMPT else 0
    slot = runner.snapshot_slot(0)
    runner.flush(0, inside, slot)
    assert_equal_states(runner.state_of(1), states[PROMPT + kept])
    if inside:
        assert_equal_states(runner.state_of(slot), states[PAGE_TOKENS])
    else:
        assert all(not part.any() for part in runner.state_of(slot)), "a snapshot that was not due was written"


def test_prefill_writes_snapshots_at_boundaries_inside_its_chunk(hybrid, by_step):
    """Two boundaries of one chunk; the live state ends at the chunk's end."""
    states = by_step.states
    runner = HybridRunner(hybrid, num_requests=2)
    first, second = runner.snapshot_slot(0), runner.snapshot_slot(1)
    runner.prefill((1, 0, IDS[5:40]), (0, 0, IDS[:150]), snapshots={1: ((64, first), (128, second))})
    for slot, position in ((first, 64), (second, 128), (1, 150)):
        assert_equal_states(runner.state_of(slot), states[position])


def test_a_restored_snapshot_continues_as_the_original(hybrid, by_step):
    """Copied into another live slot, beside its own pages; and a cleared slot begins anew."""
    runner = HybridRunner(hybrid, num_requests=2)
    slot = runner.snapshot_slot(0)
    whole = runner.prefill((0, 0, IDS[:100]), snapshots={0: ((64, slot),)})
    runner.cache.page_table[1, 0] = runner.cache.page_table[0, 0]
    runner.states.copy(slot, 2)
    assert relative_rms(runner.prefill((1, 64, IDS[64:100])), whole[64:]) < EXACT
    assert_equal_states(runner.state_of(2), runner.state_of(1))
    runner.states.copy(slot, slot)
    assert_equal_states(runner.state_of(slot), by_step.states[64])
    runner.states.clear(2)
    assert torch.equal(whole[:50], runner.prefill((1, 0, IDS[:100]))[:50])
    runner.states.check_integrity()


def test_inert_requests_disturb_nobody(hybrid):
    """A padded request on the dummy slot, row and page beside a real one: same logits, and no slot but its own moves."""
    alone, padded = HybridRunner(hybrid), HybridRunner(hybrid, num_requests=2)
    for runner in (alone, padded):
        runner.prefill((0, 0, IDS[:60]))
    before = padded.state_of(2)
    expected = alone.verify((0, 60, IDS[60:64]))
    padded.cache.page_table[1] = 0
    out = padded.verify_padded((0, 60, IDS[60:64]), padding=(1, 0, [3, 3, 3, 3]))
    assert relative_rms(out[:4], expected) < EXACT
    assert all(torch.equal(*pair) for pair in zip(before, padded.state_of(2), strict=True))
    padded.states.check_integrity()
