"""Recurrent state of hybrid targets, addressed by slot; slot 0 is the dummy.

The scheduler decides which slot is live, which holds a snapshot and when one is copied; models read and write slots
through `StateBatch`. What a slot holds is the family's business. The journal,
which is what the rows of a request's last verify would add to its state, belongs to the request's seat.
"""

from __future__ import annotations

from typing import Protocol

from paceline_runtime.batch import StateBatch


class StatePool(Protocol):
    """The state tensors of all slots."""

    num_slots: int

    def clear(self, slot: int) -> None:
        """Make `slot` the state before the first token."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Copy a snapshot into a live slot, or the reverse."""
        ...

    def flush(self, batch: StateBatch) -> None:
        """Apply the accepted journal rows of requests that ended, only to write their snapshots (a commit-only launch)."""
        ...
