"""One Gated DeltaNet layer of a verify between its two projections, in plain torch.

The face calls it. Rows come as the input projection gives them (q, k and v before their convolution, the gate z, and b and a of
every value head); the results go to the output projection. It refuses to know about requests and reads nothing back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from paceline_kernels.causal_conv.reference import verify_conv
from paceline_kernels.gated_delta.reference import DeltaRows, Journal, verify_delta
from paceline_kernels.replay import Replay


@dataclass(frozen=True)
class DeltaWeights:
    """What a layer learned beside its projections, and its sizes.

    conv: [C, K] for the C = 2 Hk Dk + Hv Dv channels of q, k and v; log_rate, rate_bias: [Hv]; norm: [Dv]
    """

    conv: torch.Tensor
    log_rate: torch.Tensor
    rate_bias: torch.Tensor
    norm: torch.Tensor
    norm_eps: float
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def widths(self) -> list[int]:
        """Columns of a projected row: q, k and v together; z; b; a."""
        value_width = self.num_value_heads * self.value_dim
        channels = 2 * self.num_key_heads * self.key_dim + value_width
        return [channels, value_width, self.num_value_heads, self.num_value_heads]


@dataclass(frozen=True)
class DeltaMemory:
    """One layer's states by slot and journals by request; row 0 of either is the dummy of inert requests.

    recurrent: [S, Hv, Dk, Dv]; conv: [S, K - 1, C]; conv_journal: [J, R, C]
    """

    recurrent: torch.Tensor
    conv: torch.Tensor
    journal: Journal
    conv_journal: torch.Tensor


def delta_step(projected: torch.Tensor, width: int, weights: DeltaWeights, memory: DeltaMemory, replay: Replay) -> torch.Tensor:
    """Rows [B * width, sum of `weights.widths`] of B requests to the output projection's rows [B * width, Hv * Dv]."""
    qkv, z, b, a = torch.split(projected, weights.widths, dim=-1)
    log_decay, beta = (x.view(-1, width, weights.num_value_heads) for x in decays_and_betas(a, b, weights))
    qkv = verify_conv(memory.conv, memory.conv_journal, replay, qkv.view(-1, width, qkv.shape[-1]), weights.conv)
    rows = delta_rows(qkv, log_decay, beta, weights)
    mixed = verify_delta(memory.recurrent, memory.journal, replay, rows)
    return gated_norm(mixed.flatten(0, 1), z.reshape(-1, weights.num_value_heads, weights.value_dim), weights)


def decays_and_betas(a: torch.Tensor, b: torch.Tensor, weights: DeltaWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decays and betas of projected columns a and b [..., Hv], in the states' dtype."""
    wide = weights.log_rate.dtype
    log_decay = -weights.log_rate.exp() * functional.softplus(a.to(wide) + weights.rate_bias)
    return log_decay, b.to(wide).sigmoid()


def delta_rows(qkv: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, weights: DeltaWeights) -> DeltaRows:
    """The heads of convolved rows [..., C]."""
    key_width = weights.num_key_heads * weights.key_dim
    q, k, v = torch.split(qkv, [key_width, key_width, qkv.shape[-1] - 2 * key_width], dim=-1)
    q, k = (x.view(*x.shape[:-1], weights.num_key_heads, weights.key_dim) for x in (q, k))
    return DeltaRows(q, k, v.view(*v.shape[:-1], weights.num_value_heads, weights.value_dim), log_decay, beta)


def gated_norm(mixed: torch.Tensor, z: torch.Tensor, weights: DeltaWeights) -> torch.Tensor:
    """An ordinary norm of each head of [N, Hv, Dv], its weight not zero-centred, times SiLU of the gate z: [N, Hv * Dv]."""
    wide = weights.norm.dtype
    normed = functional.rms_norm(mixed.to(wide), (mixed.shape[-1],), weights.norm, weights.norm_eps)
    return (normed * functional.silu(z.to(wide))).to(mixed.dtype).flatten(1)
