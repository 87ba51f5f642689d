"""Which recurrent states a step moves on, and how far: the part that all stateful operations of a step share.

The runtime makes it once per forward for its layers; all tensors are on the device and nobody reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Replay:
    """For each of B requests, int64 [B].

    slots:          its live state; 0 is the dummy that inert requests name
    journals:       its journal; 0 is the dummy
    num_rows:       leading rows of the journal to apply to the state
    snapshot_rows:  rows after which the state also goes to `snapshot_slots`; 0 for none
    snapshot_slots: see there
    """

    slots: torch.Tensor
    journals: torch.Tensor
    num_rows: torch.Tensor
    snapshot_rows: torch.Tensor
    snapshot_slots: torch.Tensor

    @property
    def written_snapshots(self) -> torch.Tensor:
        """`snapshot_slots` where a snapshot is due, else the dummy."""
        return torch.where(self.snapshot_rows > 0, self.snapshot_slots, 0)
