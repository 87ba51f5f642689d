"""The recurrent states of Gated DeltaNet layers by slot, and the journals of their last verifies by seat.

The hybrid families make it as the engine's `StatePool`; their layers read and write it through `DeltaMemory`. Recurrent states
and journals are float32, or float64 where the engine is: what 16 bits lose in a state stays lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_kernels.causal_conv import replay_conv
from paceline_kernels.delta_step import DeltaMemory
from paceline_kernels.gated_delta import Journal, replay_delta
from paceline_kernels.replay import Replay
from paceline_runtime.batch import StateBatch


class GatedDeltaStates:
    """A `StatePool` over tensors [layers, slots, ...] of states and [layers, seats, rows, ...] of journals."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._recurrent, self._conv = tensors["recurrent_states"], tensors["conv_states"]
        self._keys, self._values = tensors["journal_keys"], tensors["journal_values"]
        self._decays, self._conv_journal = tensors["journal_decays"], tensors["journal_conv"]
        num_layers, self.num_slots = self._recurrent.shape[:2]
        self.journal_rows = self._keys.shape[2]
        self.layers = [self._layer(index) for index in range(num_layers)]

    def clear(self, slot: int) -> None:
        """Make `slot` the state before the first token."""
        self._recurrent[:, slot].zero_()
        self._conv[:, slot].zero_()

    def copy(self, source: int, target: int) -> None:
        """Copy a snapshot into a live slot, or the reverse; onto itself it changes nothing."""
        self._recurrent[:, target] = self._recurrent[:, source]
        self._conv[:, target] = self._conv[:, source]

    def flush(self, batch: StateBatch) -> None:
        """Apply accepted journal rows without computing new ones, and write the snapshots that are due inside them."""
        step = replay_of(batch)
        for layer in self.layers:
            replay_conv(layer.conv, layer.conv_journal, step)
            replay_delta(layer.recurrent, layer.journal, step)

    def check_integrity(self) -> None:
        """Assert that every slot, the dummy too, holds numbers. It reads the device, so it is for tests."""
        for name, states in (("recurrent", self._recurrent), ("convolution", self._conv)):
            finite = states.isfinite().flatten(2).all(2).all(0)
            assert bool(finite.all()), f"{name} states of slots {(~finite).nonzero().flatten().tolist()} are not finite"

    def _layer(self, index: int) -> DeltaMemory:
        journal = Journal(self._keys[index], self._values[index], self._decays[index])
        return DeltaMemory(self._recurrent[index], self._conv[index], journal, self._conv_journal[index])


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of recurrent states in an engine of `dtype`."""
    return torch.promote_types(dtype, torch.float32)


def replay_of(batch: StateBatch) -> Replay:
    """A step's state inputs as the kernels take them."""
    return Replay(batch.slots, batch.seats, batch.replay_rows, batch.snapshot_rows, batch.snapshot_slots)
