"""The gated delta rule over states in slots, with a journal, in plain torch, some rows at a time.

The face calls it. It refuses to know about requests, and reads nothing back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_kernels.replay import Replay

CHUNK_ROWS = 64
"""Rows of a prefill that are computed together: the page grid, so that a cut there changes no sum."""
_NORM_EPS = 1e-6


@dataclass(frozen=True)
class DeltaRows:
    """Rows as the projections and the convolution give them: q and k are normalised and scaled here.

    q, k: [..., Hk, Dk]; v: [..., Hv, Dv]; log_decay, beta: [..., Hv] of the states' dtype
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor
    beta: torch.Tensor


@dataclass(frozen=True)
class Journal:
    """What the rows of each request's last verify would add to its state, up to R rows.

    keys: [J, R, Hk, Dk], normalised; values: [J, R, Hv, Dv], corrected; decays: [J, R, Hv], cumulated log decays
    """

    keys: torch.Tensor
    values: torch.Tensor
    decays: torch.Tensor


def replay_delta(states: torch.Tensor, journal: Journal, replay: Replay) -> torch.Tensor:
    """Move the states [S, Hv, Dk, Dv] of B requests on by their journal rows; returns them. Snapshots are written too."""
    before = states.index_select(0, replay.slots)
    keys, values, decays = (
        part.index_select(0, replay.journals).transpose(1, 2) for part in (journal.keys, journal.values, journal.decays)
    )
    rows = _per_value_head(keys, before.shape[1]), values, decays
    moved = _advance(before, *rows, replay.num_rows)
    states.index_copy_(0, replay.written_snapshots, _advance(before, *rows, replay.snapshot_rows))
    states.index_copy_(0, replay.slots, moved)
    return moved


def verify_delta(states: torch.Tensor, journal: Journal, replay: Replay, rows: DeltaRows) -> torch.Tensor:
    """The operation, all W rows as one chunk in the states' dtype."""
    state = replay_delta(states, journal, replay)
    q, k, v, decays, beta = _heads_first(rows, state)
    out, values = _chunk(state, q, k, v, decays, beta)
    num_shared, width = state.shape[1] // journal.keys.shape[2], k.shape[2]
    for kept, new in zip((journal.keys, journal.values, journal.decays), (k[:, ::num_shared], values, decays), strict=True):
        kept[:, :width].index_copy_(0, replay.journals, new.transpose(1, 2))
    return out.transpose(1, 2).to(rows.v.dtype)


def prefill_delta(rows: DeltaRows, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The operation, CHUNK_ROWS at a time."""
    state, outs = state[None], []
    for start in range(0, len(rows.q), CHUNK_ROWS):
        parts = (rows.q, rows.k, rows.v, rows.log_decay, rows.beta)
        chunk = DeltaRows(*(part[None, start : start + CHUNK_ROWS] for part in parts))
        q, k, v, decays, beta = _heads_first(chunk, state)
        out, values = _chunk(state, q, k, v, decays, beta)
        state = _advance(state, k, values, decays, torch.full((1,), k.shape[2], device=k.device))
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs).to(rows.v.dtype), state[0]


def _per_value_head(x: torch.Tensor, num_value_heads: int) -> torch.Tensor:
    """Repeat the key heads of x [B, Hk, ...] for the value heads they serve."""
    return x.repeat_interleave(num_value_heads // x.shape[1], dim=1)


def _heads_first(rows: DeltaRows, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k, v [B, Hv, W, D], cumulated log decays and beta [B, Hv, W], all in the state's dtype."""
    num_heads = state.shape[1]
    q, k, v, decay, beta = (
        part.transpose(1, 2).to(state.dtype) for part in (rows.q, rows.k, rows.v, rows.log_decay, rows.beta)
    )
    q, k = (_per_value_head(_normalised(x), num_heads) for x in (q, k))
    return q * q.shape[-1] ** -0.5, k, v, decay.cumsum(-1), beta


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _NORM_EPS)


def _advance(
    state: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decays: torch.Tensor, num_rows: torch.Tensor
) -> torch.Tensor:
    """The states [B, Hv, Dk, Dv] after the first `num_rows` int64 [B] of R rows: one rank-R update.

    keys [B, Hv, R, Dk], values [B, Hv, R, Dv], decays [B, Hv, R]. What later rows hold, NaN included, does not matter.
    """
    kept = (torch.arange(keys.shape[2], device=keys.device) < num_rows[:, None])[:, None]
    last = decays.gather(2, (num_rows - 1).clamp(min=0)[:, None, None].expand(-1, decays.shape[1], 1))
    last = last.masked_fill((num_rows == 0)[:, None, None], 0.0)
    weights = (last - decays).masked_fill(~kept, -torch.inf).exp()
    keys = (keys * weights[..., None]).masked_fill(~kept[..., None], 0.0)
    return state * last.exp()[..., None] + keys.transpose(2, 3) @ values.masked_fill(~kept[..., None], 0.0)


def _chunk(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decays: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and corrected values [B, Hv, W, Dv] of W rows after `state`, together instead of row by row.

    u_i = beta_i (v_i - e^{G_i} k_i^T S - sum_{j<i} e^{G_i - G_j} (k_i . k_j) u_j): a unit lower triangular system.
    """
    width, grown = q.shape[2], decays.exp()[..., None]
    later = torch.ones(width, width, dtype=torch.bool, device=q.device).triu(1)
    # Masked before the exponential: e^{G_i - G_j} of a later j may overflow, and 0 times inf is NaN.
    decay = (decays[..., :, None] - decays[..., None, :]).masked_fill(later, -torch.inf).exp()
    system = (beta[..., None] * (k @ k.transpose(2, 3)) * decay).tril(-1)
    wanted = beta[..., None] * (v - grown * (k @ state))
    values = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    return grown * (q @ state) + (q @ k.transpose(2, 3) * decay) @ values, values
