"""The convolution in front of the gated delta rule, over the rows of a verify or of prefill chunks."""

from __future__ import annotations

import torch

from paceline_kernels.causal_conv import prefill_conv
from paceline_kernels.replay import Replay
from paceline_runtime.batch import Chunk
from paceline_runtime.cache.gated_delta_states import LayerStates
from paceline_runtime.layers.delta_ops import DeltaOps


class CausalConv:
    """Depthwise over C channels with SiLU; `weight` [C, 1, K] as stored."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def verify(self, x: torch.Tensor, states: LayerStates, replay: Replay, ops: DeltaOps) -> torch.Tensor:
        """W rows per request, x [B, W, C]: the states move on by what the last verify had accepted."""
        return ops.verify_conv(states.conv, states.conv_journal, replay, x, self.weight[:, 0])

    def prefill(self, x: torch.Tensor, states: LayerStates, slot: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """One request's rows x [T, C] from the state of `slot` int64 [1], which moves to their end."""
        ends = (*(tokens for tokens, _ in chunk.snapshots), chunk.num_tokens)
        out, found = prefill_conv(states.conv.index_select(0, slot)[0], x, self.weight[:, 0], ends)
        for (_, snapshot), state in zip(chunk.snapshots, found, strict=False):
            states.conv[snapshot] = state
        states.conv.index_copy_(0, slot, found[-1][None])
        return out
