"""The recurrent states of Gated DeltaNet layers by slot, and the journals of their last verifies by seat.

The hybrid families make it as the engine's `StatePool`; their layers read and write it through `DeltaMemory`. Recurrent states
and journals are float32, or float64 where the engine is: what 16 bits lose in a state stays lost.
"""

from __future__ import annotations

import torch

from paceline_compat.facts.records import GdnFacts
from paceline_kernels.causal_conv import replay_conv
from paceline_kernels.delta_step import DeltaMemory
from paceline_kernels.gated_delta import Journal, replay_delta
from paceline_kernels.replay import Replay
from paceline_runtime.batch import StateBatch


class GatedDeltaStates:
    """A `StatePool`. Its memory is zeroed once, so that dummies hold finite numbers."""

    def __init__(
        self,
        shape: GdnFacts,
        *,
        num_layers: int,
        num_slots: int,
        num_rows: int,
        journal_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def zeros(*sizes: int, kind: torch.dtype) -> torch.Tensor:
            return torch.zeros((num_layers, *sizes), dtype=kind, device=device)

        wide, heads, rows = state_dtype(dtype), shape.num_value_heads, (num_rows, journal_rows)
        self.num_slots, self.journal_rows = num_slots, journal_rows
        self._recurrent = zeros(num_slots, heads, shape.key_head_dim, shape.value_head_dim, kind=wide)
        self._conv = zeros(num_slots, shape.conv_kernel_size - 1, shape.conv_dim, kind=dtype)
        self._keys = zeros(*rows, shape.num_key_heads, shape.key_head_dim, kind=wide)
        self._values = zeros(*rows, heads, shape.value_head_dim, kind=wide)
        self._decays = zeros(*rows, heads, kind=wide)
        self._conv_journal = zeros(*rows, shape.conv_dim, kind=dtype)
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

    def memory_bytes(self) -> int:
        """Bytes of all slots and journals."""
        journals = (self._keys, self._values, self._decays, self._conv_journal)
        return sum(tensor.nbytes for tensor in (self._recurrent, self._conv, *journals))

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
