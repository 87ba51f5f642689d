"""Slots of recurrent state under random verifies, restores, clears and flushes: each holds the state of its own text."""

from __future__ import annotations

from functools import lru_cache

import torch
from gdn_recurrence import part, random_rows, relative_rms, replaying, step_by_step
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_compat.facts.records import GdnFacts
from paceline_compat.memory.buffers import state_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_kernels.causal_conv import verify_conv
from paceline_kernels.gated_delta import verify_delta
from paceline_runtime.batch import StateBatch
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.cache.gated_delta_states import GatedDeltaStates

SIZES = GdnFacts(num_key_heads=1, num_value_heads=2, key_head_dim=4, value_head_dim=3, conv_kernel_size=4)
NUM_REQUESTS, NUM_SLOTS, JOURNAL_ROWS, BANK = 2, 6, 4, 9
SNAPSHOTS = range(NUM_REQUESTS + 1, NUM_SLOTS)

requests = st.integers(1, NUM_REQUESTS)
snapshot_slots = st.sampled_from(SNAPSHOTS)
tokens = st.integers(0, BANK - 1)
blocks = st.lists(tokens, min_size=1, max_size=JOURNAL_ROWS)
steps = st.one_of(
    st.tuples(st.just("verify"), requests, blocks, st.integers(1, JOURNAL_ROWS), st.integers(0, JOURNAL_ROWS), snapshot_slots),
    st.tuples(st.just("flush"), requests, st.integers(0, JOURNAL_ROWS), snapshot_slots),
    st.tuples(st.just("restore"), requests, snapshot_slots),
    st.tuples(st.just("clear"), requests),
)


class Bank:
    """A few tokens, each with its own rows; a text is a tuple of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.rows = random_rows(BANK, key_heads=1, value_heads=2, key_dim=4, value_dim=3)
        self.conv_inputs = torch.randn(BANK, SIZES.conv_dim, dtype=torch.float64)
        self.weight = torch.randn(SIZES.conv_dim, SIZES.conv_kernel_size, dtype=torch.float64)
        self.recurrent = lru_cache(self._recurrent)

    def _recurrent(self, text: tuple[int, ...]) -> torch.Tensor:
        if not text:
            return torch.zeros(2, 4, 3, dtype=torch.float64)
        return step_by_step(part(self.rows, [text[-1]]), self.recurrent(text[:-1]))[1][-1]

    def conv(self, text: tuple[int, ...]) -> torch.Tensor:
        kept = SIZES.conv_kernel_size - 1
        padded = torch.cat((torch.zeros(kept, SIZES.conv_dim, dtype=torch.float64), self.conv_inputs[list(text)]))
        return padded[len(padded) - kept :]


BANK_OF_ROWS = Bank()


class Pool:
    """The pool under test beside what it must hold: a text by slot, and the kept part of each request's last block."""

    def __init__(self) -> None:
        buffers = state_buffers(SIZES, 2, "float64", JOURNAL_ROWS - 1)
        layout = MemoryLayout(buffers, num_seats=NUM_REQUESTS + 1, num_slots=NUM_SLOTS)
        self.states = GatedDeltaStates(allocate(layout, torch.device("cpu")))
        self.texts: dict[int, tuple[int, ...]] = dict.fromkeys(range(1, NUM_SLOTS), ())
        self.kept: dict[int, tuple[int, ...]] = dict.fromkeys(range(1, NUM_REQUESTS + 1), ())

    def verify(self, request: int, block: list[int], kept: int, snapshot_rows: int, slot: int) -> None:
        snapshot_rows = min(snapshot_rows, len(self.kept[request]))
        step = replaying([request], [len(self.kept[request])], [snapshot_rows], [slot], journals=[request])
        for layer in self.states.layers:
            verify_conv(layer.conv, layer.conv_journal, step, BANK_OF_ROWS.conv_inputs[block][None], BANK_OF_ROWS.weight)
            verify_delta(layer.recurrent, layer.journal, step, part(BANK_OF_ROWS.rows, [block]))
        self._replayed(request, snapshot_rows, slot)
        self.kept[request] = tuple(block[: min(kept, len(block))])

    def flush(self, request: int, snapshot_rows: int, slot: int) -> None:
        snapshot_rows = min(snapshot_rows, len(self.kept[request]))
        columns = ([request], [len(self.kept[request])], [snapshot_rows], [slot], [request])
        self.states.flush(StateBatch(*map(torch.tensor, columns)))
        self._replayed(request, snapshot_rows, slot)

    def restore(self, request: int, slot: int) -> None:
        self.states.copy(slot, request)
        self.texts[request], self.kept[request] = self.texts[slot], ()

    def clear(self, request: int) -> None:
        self.states.clear(request)
        self.texts[request] = self.kept[request] = ()

    def _replayed(self, request: int, snapshot_rows: int, slot: int) -> None:
        if snapshot_rows:
            self.texts[slot] = self.texts[request] + self.kept[request][:snapshot_rows]
        self.texts[request] += self.kept[request]
        self.kept[request] = ()

    def check(self) -> None:
        self.states.check_integrity()
        for slot, text in self.texts.items():
            for layer in self.states.layers:
                assert torch.equal(layer.conv[slot], BANK_OF_ROWS.conv(text))
                expected = BANK_OF_ROWS.recurrent(text)
                assert relative_rms(layer.recurrent[slot], expected) < 1e-12 or not (
                    expected.any() or layer.recurrent[slot].any()
                )


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, min_size=1, max_size=25))
def test_every_slot_holds_the_state_of_its_text(operations: list[tuple]) -> None:
    """Whatever is replayed, snapshotted, restored or begun anew, and however little of a block was kept."""
    pool = Pool()
    for name, *arguments in operations:
        getattr(pool, name)(*arguments)
        pool.check()
