"""Captures on a CPU: work is done when it is replayed, on what stands then at the places that it knew at its capture."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields, is_dataclass

import torch


class FakeCaptured:
    """A result that was asked for before the first replay is what other captures read: replays overwrite it where it lies.

    Other results are new each time: what leaves a graph is copied by a GPU's stream, but not on a CPU.
    """

    def __init__(self, work, record):
        self._work = work
        self._record = record
        self._result = None
        self._is_read_by_others = False

    @property
    def result(self):
        """What was left last. Asked before the first replay it is computed, which only drafts bear."""
        if self._result is None:
            self._result, self._is_read_by_others = self._work(), True
        return self._result

    def replay(self):
        """Do the work, and leave the result where the others lay."""
        self._record.num_replays += 1
        found = self._work()
        if self._is_read_by_others:
            overwrite(self._result, found)
        else:
            self._result = found


@dataclass
class Record:
    """What is known of a capture, also when it is gone."""

    num_replays: int = 0


class FakeCapture:
    """Captures everything that does not fail a check of `refuses`, and remembers it.

    Like torch it refuses a pool whose graphs are all gone.
    """

    def __init__(self, refuses: bool = False):
        self.captured: list[Record] = []
        self._refuses = refuses
        self.forget()

    def forget(self) -> None:
        """See `Capture`."""
        self._pool: list[weakref.ref[FakeCaptured]] = []

    def __call__(self, work):
        """See `Capture`."""
        if self._refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self._pool and not any(graph() for graph in self._pool):
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.captured.append(Record())
        captured = FakeCaptured(work, self.captured[-1])
        self._pool.append(weakref.ref(captured))
        return captured


def overwrite(old, new) -> None:
    """Put the tensors of `new` into those of `old`."""
    if isinstance(old, torch.Tensor):
        old.copy_(new)
    elif isinstance(old, tuple):
        for one, other in zip(old, new, strict=True):
            overwrite(one, other)
    elif is_dataclass(old):
        for field in fields(old):
            overwrite(getattr(old, field.name), getattr(new, field.name))
    else:
        assert old == new
