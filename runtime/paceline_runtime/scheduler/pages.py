"""The free list of K/V pages. The scheduler owns it; it knows page numbers, never what a page holds."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Pages 1 .. num_pages - 1; page 0 is the dummy that inert rows write to and is never handed out."""

    def __init__(self, num_pages: int) -> None:
        assert num_pages >= 2, "a pool needs the dummy page and at least one other"
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))

    @property
    def num_free(self) -> int:
        """Pages that `take` can still give."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` pages; the caller has checked `num_free`."""
        assert 0 <= count <= len(self._free), "taking more pages than are free"
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        return taken

    def give_back(self, pages: Iterable[int]) -> None:
        """Return pages nobody refers to any more."""
        self._free.extend(pages)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Every page is either free or in `owned`, exactly once."""
        everything = sorted([*self._free, *owned])
        assert everything == list(range(1, self.num_pages)), "pages are lost, shared or duplicated"
