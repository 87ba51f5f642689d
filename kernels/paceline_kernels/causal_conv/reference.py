"""Depthwise causal convolution with state and journal, in plain torch.

The face calls it. It refuses to know about requests.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_kernels.replay import Replay

_TILE_ROWS = 1024
"""A prefill convolves so many rows at once: the float32 sums of a long chunk would take several times its memory."""


def replay_conv(states: torch.Tensor, journal: torch.Tensor, replay: Replay) -> torch.Tensor:
    """Move the states of B requests on by their journal rows: the new states [B, K - 1, C]. Snapshots are written too."""
    inputs = torch.cat((states.index_select(0, replay.slots), journal.index_select(0, replay.journals)), dim=1)
    num_kept = states.shape[1]
    moved = _window(inputs, replay.num_rows, num_kept)
    states.index_copy_(0, replay.written_snapshots, _window(inputs, replay.snapshot_rows, num_kept))
    states.index_copy_(0, replay.slots, moved)
    return moved


def verify_conv(
    states: torch.Tensor, journal: torch.Tensor, replay: Replay, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The operation, as a convolution over state and rows put together."""
    before = replay_conv(states, journal, replay)
    journal[:, : x.shape[1]].index_copy_(0, replay.journals, x)
    return _convolve(torch.cat((before, x), dim=1), weight)


def prefill_conv(
    state: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, ends: tuple[int, ...]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Convolve one sequence's rows x [T, C] after `state` [K - 1, C]: outputs [T, C], and the states after `ends` rows."""
    inputs, reach = torch.cat((state, x)), state.shape[0]
    tiles = [inputs[start : start + _TILE_ROWS + reach] for start in range(0, len(x), _TILE_ROWS)]
    out = torch.cat([_convolve(tile, weight) for tile in tiles])
    return out, tuple(inputs[end : end + reach] for end in ends)


def _window(inputs: torch.Tensor, starts: torch.Tensor, size: int) -> torch.Tensor:
    """Rows starts[b] .. starts[b] + size - 1 of inputs [B, L, C]."""
    index = starts[:, None] + torch.arange(size, device=starts.device)
    return inputs.gather(1, index[..., None].expand(-1, -1, inputs.shape[-1]))


def _convolve(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Inputs [..., K - 1 + W, C] to [..., W, C], summed in at least float32."""
    taps = weight.to(torch.promote_types(inputs.dtype, torch.float32)).T
    width = inputs.shape[-2] - len(taps) + 1
    total = inputs[..., :width, :] * taps[0]
    for tap in range(1, len(taps)):
        total = torch.addcmul(total, inputs[..., tap : tap + width, :].to(total.dtype), taps[tap])
    return functional.silu(total).to(inputs.dtype)
