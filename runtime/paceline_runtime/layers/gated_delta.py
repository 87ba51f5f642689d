"""Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464), the linear attention of the hybrid families.

Called by their layer loop. A verify reads its states and journals its rows; a prefill writes states, and snapshots where the
batch asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from paceline_kernels.gated_delta import DeltaRows
from paceline_kernels.replay import Replay
from paceline_kernels.rms_norm import rms_norm
from paceline_runtime.batch import Chunk, ForwardBatch
from paceline_runtime.cache.gated_delta_states import DeltaShape, GatedDeltaStates, LayerStates, replay_of
from paceline_runtime.cache.state import StatePool
from paceline_runtime.layers.causal_conv import CausalConv
from paceline_runtime.layers.delta_ops import DeltaOps
from paceline_runtime.layers.linear import Linear


@dataclass(frozen=True)
class DeltaContext:
    """What all Gated DeltaNet layers of one forward share."""

    batch: ForwardBatch
    states: GatedDeltaStates
    replay: Replay
    ops: DeltaOps


def delta_context(batch: ForwardBatch, states: StatePool | None, ops: DeltaOps) -> DeltaContext:
    """Prepare a forward over states that `GatedDeltaStates` holds."""
    assert batch.state is not None, "a hybrid target needs state slots"
    assert isinstance(states, GatedDeltaStates), "states of another family"
    assert batch.width <= states.journal_rows, f"{batch.width} rows do not fit a journal of {states.journal_rows}"
    return DeltaContext(batch, states, replay_of(batch.state), ops)


class GatedDeltaNet:
    """One layer. `projection` stacks the rows of qkv, z, b and a; `layer` is the index into the states."""

    def __init__(
        self,
        shape: DeltaShape,
        projection: Linear,
        conv: CausalConv,
        out: Linear,
        *,
        layer: int,
        log_rate: torch.Tensor,
        rate_bias: torch.Tensor,
        norm_weight: torch.Tensor,
        norm_eps: float,
    ) -> None:
        self.shape, self.projection, self.conv, self.out, self.layer = shape, projection, conv, out, layer
        self.log_rate, self.rate_bias = log_rate, rate_bias
        self.norm_weight, self.norm_eps = norm_weight, norm_eps

    def __call__(self, x: torch.Tensor, context: DeltaContext) -> torch.Tensor:
        shape, states = self.shape, context.states.layers[self.layer]
        widths = [shape.conv_channels, shape.value_width, shape.num_value_heads, shape.num_value_heads]
        qkv, z, b, a = torch.split(self.projection(x), widths, dim=-1)
        log_decay = -self.log_rate.exp() * functional.softplus(a.to(self.log_rate.dtype) + self.rate_bias)
        beta = b.to(self.log_rate.dtype).sigmoid()
        compute = self._verify if context.batch.width else self._prefill
        mixed = compute(qkv, log_decay, beta, states, context)
        return self.out(self._gated_norm(mixed, z.view(mixed.shape)).flatten(1))

    def _verify(
        self, qkv: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, states: LayerStates, context: DeltaContext
    ) -> torch.Tensor:
        width = context.batch.width
        qkv, log_decay, beta = (x.view(-1, width, x.shape[-1]) for x in (qkv, log_decay, beta))
        rows = self._rows(self.conv.verify(qkv, states, context.replay, context.ops), log_decay, beta)
        return context.ops.verify(states.recurrent, states.journal, context.replay, rows).flatten(0, 1)

    def _prefill(
        self, qkv: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, states: LayerStates, context: DeltaContext
    ) -> torch.Tensor:
        outs = []
        for index, chunk in enumerate(context.batch.chunks):
            slot, inside = context.replay.slots[index : index + 1], slice(chunk.offset, chunk.offset + chunk.num_tokens)
            convolved = self.conv.prefill(qkv[inside], states, slot, chunk)
            state = states.recurrent.index_select(0, slot)[0]
            for start, end, snapshot in _segments(chunk):
                rows = self._rows(convolved[start:end], log_decay[inside][start:end], beta[inside][start:end])
                out, state = context.ops.prefill(rows, state)
                outs.append(out)
                if snapshot:
                    states.recurrent[snapshot] = state
            states.recurrent.index_copy_(0, slot, state[None])
        return torch.cat(outs)

    def _rows(self, qkv: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor) -> DeltaRows:
        shape = self.shape
        q, k, v = torch.split(qkv, [shape.key_width, shape.key_width, shape.value_width], dim=-1)
        q, k = (x.view(*x.shape[:-1], shape.num_key_heads, shape.key_dim) for x in (q, k))
        return DeltaRows(q, k, v.view(*v.shape[:-1], shape.num_value_heads, shape.value_dim), log_decay, beta)

    def _gated_norm(self, mixed: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """An ordinary norm of each head, its weight not zero-centred, times SiLU of the gate: [N, Hv, Dv]."""
        wide = self.norm_weight.dtype
        normed = rms_norm(mixed.to(wide), self.norm_weight, self.norm_eps)
        return (normed * functional.silu(gate.to(wide))).to(mixed.dtype)


def _segments(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """A chunk cut where snapshots are due: (first row, row after the last, snapshot slot or 0)."""
    start = 0
    for tokens, slot in chunk.snapshots:
        yield start, tokens, slot
        start = tokens
    if start < chunk.num_tokens:
        yield start, chunk.num_tokens, 0
