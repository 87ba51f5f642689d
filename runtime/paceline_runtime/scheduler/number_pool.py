"""Small numbered resources: seats and recurrent-state slots. Number 0 is the dummy and is never handed out."""

from __future__ import annotations

from collections.abc import Iterable


class NumberPool:
    """Numbers 1 .. size - 1, lowest first, so that batches stay dense and tests are reproducible."""

    def __init__(self, size: int) -> None:
        assert size >= 1, "a pool needs the dummy"
        self.size = size
        self._free = list(range(size - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """Numbers that `take` can still give."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free number; the caller has checked `num_free`."""
        assert self._free, "taking a number when none is free"
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """Return a number nobody refers to any more."""
        assert 0 < number < self.size, f"{number} is not of this pool"
        self._free.append(number)
        self._free.sort(reverse=True)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Every number is either free or in `owned`, exactly once."""
        assert sorted([*self._free, *owned]) == list(range(1, self.size)), "numbers are lost, shared or duplicated"
