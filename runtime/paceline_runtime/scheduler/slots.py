"""Small numbered resources: request rows and recurrent-state slots. Number 0 is the dummy and is never handed out."""

from __future__ import annotations

from collections.abc import Iterable


class SlotPool:
    """Slots 1 .. num_slots - 1, lowest first, so that batches stay dense and tests are reproducible."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1, "a pool needs the dummy slot"
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """Slots that `take` can still give."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot; the caller has checked `num_free`."""
        assert self._free, "taking a slot when none is free"
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Return a slot nobody refers to any more."""
        assert 0 < slot < self.num_slots, f"slot {slot} is not of this pool"
        self._free.append(slot)
        self._free.sort(reverse=True)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Every slot is either free or in `owned`, exactly once."""
        assert sorted([*self._free, *owned]) == list(range(1, self.num_slots)), "slots are lost, shared or duplicated"
