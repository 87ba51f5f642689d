"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), the linear attention of the hybrid families.

The decoder calls it. A verify reads its states and journals its rows; a prefill writes states, and snapshots where the batch
asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from paceline_kernels.causal_conv import prefill_conv
from paceline_kernels.delta_step import DeltaMemory, DeltaWeights, decays_and_betas, delta_rows, delta_step, gated_norm
from paceline_kernels.gated_delta import prefill_delta
from paceline_kernels.replay import Replay
from paceline_runtime.batch import Chunk, ForwardBatch, PrefillBatch, VerifyBatch
from paceline_runtime.cache.gated_delta_states import GatedDeltaStates, replay_of
from paceline_runtime.cache.state import StatePool
from paceline_runtime.layers.linear import Linear


@dataclass(frozen=True)
class DeltaContext:
    """What all Gated DeltaNet layers of one forward share."""

    batch: ForwardBatch
    states: GatedDeltaStates
    replay: Replay


def delta_context(batch: ForwardBatch, states: StatePool | None) -> DeltaContext:
    """Prepare a forward over states that `GatedDeltaStates` holds."""
    assert batch.state is not None, "a hybrid target needs state slots"
    assert isinstance(states, GatedDeltaStates), "states of another family"
    if isinstance(batch, VerifyBatch):
        assert batch.width <= states.journal_rows, f"{batch.width} rows do not fit a journal of {states.journal_rows}"
    return DeltaContext(batch, states, replay_of(batch.state))


class GatedDeltaNet:
    """One layer. `projection` stacks the rows of qkv, z, b and a; `layer` is the index into the states."""

    def __init__(self, projection: Linear, weights: DeltaWeights, out: Linear, *, layer: int) -> None:
        self.projection, self.weights, self.out, self.layer = projection, weights, out, layer

    def __call__(self, x: torch.Tensor, context: DeltaContext) -> torch.Tensor:
        projected, memory = self.projection(x), context.states.layers[self.layer]
        if isinstance(context.batch, VerifyBatch):
            mixed = delta_step(projected, context.batch.width, self.weights, memory, context.replay)
        else:
            mixed = self._prefill(projected, memory, context.batch, context.replay.slots)
        return self.out.to_be_added(mixed)

    def _prefill(self, projected: torch.Tensor, memory: DeltaMemory, batch: PrefillBatch, slots: torch.Tensor) -> torch.Tensor:
        weights, outs = self.weights, []
        qkv, z, b, a = torch.split(projected, weights.widths, dim=-1)
        log_decay, beta = decays_and_betas(a, b, weights)
        for index, chunk in enumerate(batch.chunks):
            slot, inside = slots[index : index + 1], slice(chunk.offset, chunk.offset + chunk.num_tokens)
            convolved = _prefill_conv(qkv[inside], weights.conv, memory, slot, chunk)
            state = memory.recurrent.index_select(0, slot)[0]
            for start, end, snapshot in _segments(chunk):
                rows = delta_rows(convolved[start:end], log_decay[inside][start:end], beta[inside][start:end], weights)
                out, state = prefill_delta(rows, state)
                outs.append(out)
                if snapshot:
                    memory.recurrent[snapshot] = state
            memory.recurrent.index_copy_(0, slot, state[None])
        mixed = torch.cat(outs)
        return gated_norm(mixed, z.reshape(mixed.shape), weights)


def _prefill_conv(x: torch.Tensor, weight: torch.Tensor, memory: DeltaMemory, slot: torch.Tensor, chunk: Chunk) -> torch.Tensor:
    """One request's rows x [T, C] convolved from the state of `slot` int64 [1], which moves to their end."""
    ends = (*(tokens for tokens, _ in chunk.snapshots), chunk.num_tokens)
    out, found = prefill_conv(memory.conv.index_select(0, slot)[0], x, weight, ends)
    for (_, snapshot), state in zip(chunk.snapshots, found, strict=False):
        memory.conv[snapshot] = state
    memory.conv.index_copy_(0, slot, found[-1][None])
    return out


def _segments(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """A chunk cut where snapshots are due: (first row, row after the last, snapshot slot or 0)."""
    start = 0
    for tokens, slot in chunk.snapshots:
        yield start, tokens, slot
        start = tokens
    if start < chunk.num_tokens:
        yield start, chunk.num_tokens, 0
