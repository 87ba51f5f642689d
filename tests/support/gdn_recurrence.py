"""The gated delta rule and the causal convolution row by row, as they are defined: the oracle of their kernels."""

from __future__ import annotations

import torch

from paceline_kernels.gated_delta import DeltaRows
from paceline_kernels.replay import Replay


def replaying(slots, num_rows, snapshot_rows=None, snapshot_slots=None, journals=None) -> Replay:
    """A replay of lists or tensors; journals are numbered from 1 in the order of the requests unless given."""
    slots = torch.as_tensor(slots)
    none = torch.zeros_like(slots)
    journals = torch.arange(1, 1 + len(slots)) if journals is None else torch.as_tensor(journals)
    snapshots = [none if given is None else torch.as_tensor(given) for given in (snapshot_rows, snapshot_slots)]
    return Replay(slots, journals, torch.as_tensor(num_rows), *snapshots)


def random_rows(*shape: int, key_heads=2, value_heads=4, key_dim=8, value_dim=6, dtype=torch.float64) -> DeltaRows:
    """Rows [*shape, heads, dim] with decays from nearly 1 to almost total."""
    return DeltaRows(
        q=torch.randn(*shape, key_heads, key_dim, dtype=dtype),
        k=torch.randn(*shape, key_heads, key_dim, dtype=dtype),
        v=torch.randn(*shape, value_heads, value_dim, dtype=dtype),
        log_decay=-(torch.rand(*shape, value_heads, dtype=dtype) ** 4) * 8,
        beta=torch.rand(*shape, value_heads, dtype=dtype),
    )


def part(rows: DeltaRows, *index) -> DeltaRows:
    """The same rows, indexed."""
    return DeltaRows(*(x[index] for x in (rows.q, rows.k, rows.v, rows.log_decay, rows.beta)))


def step_by_step(rows: DeltaRows, state: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Outputs [T, Hv, Dv] of one sequence, and the state after 0, 1 .. T rows."""
    states, outs = [state], []
    shared = state.shape[0] // rows.k.shape[1]
    for t in range(len(rows.q)):
        q, k = (_normalised(x[t]).repeat_interleave(shared, 0) for x in (rows.q, rows.k))
        state = state * rows.log_decay[t].exp()[:, None, None]
        u = rows.beta[t][:, None] * (rows.v[t] - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * u[:, None, :]
        outs.append(torch.einsum("hkv,hk->hv", state, q) * k.shape[-1] ** -0.5)
        states.append(state)
    return torch.stack(outs), states


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def conv_by_rows(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Outputs [T, C] of all inputs of a sequence [T, C] from its start; weight [C, K]."""
    size = weight.shape[1]
    padded = torch.cat((inputs.new_zeros(size - 1, inputs.shape[1]), inputs))
    windows = torch.stack([padded[t : t + size].T for t in range(len(inputs))])
    return torch.nn.functional.silu((windows * weight).sum(-1))


def relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference over that of `expected`; NaN anywhere is an infinite one."""
    if actual.isnan().any() or actual.shape != expected.shape:
        return float("inf")
    return float((actual - expected).double().norm() / expected.double().norm().clamp(min=1e-30))
