"""A mixture of experts: each row goes to the few experts its router likes most, and through one that all rows share."""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_kernels.moe import grouped_linear
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import GatedMlp


class MixtureOfExperts:
    """gate_up: [E, 2 I, H], gate before up; down: [E, H, I]. Rows that are not active reach no expert.

    Rows are sorted by expert and multiplied group by group; how many rows an expert got is never read back to the host.
    """

    def __init__(
        self,
        router: Linear,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        shared: GatedMlp,
        shared_gate: Linear,
        *,
        num_chosen: int,
    ) -> None:
        self.router, self.gate_up, self.down, self.num_chosen = router, gate_up, down, num_chosen
        self.shared, self.shared_gate = shared, shared_gate

    def __call__(self, x: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Rows x [N, H], active bool [N]: [N, H]."""
        weights, experts = self.route(x, active)
        mixed = self._experts(x, weights, experts)
        return mixed + self.shared_gate(x).sigmoid() * self.shared(x)

    def route(self, x: torch.Tensor, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [N, k], which sum to 1, and expert ids int64 [N, k] of each row; id E for rows that are not active."""
        logits = self.router(x)
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        chosen, experts = probabilities.topk(self.num_chosen, dim=-1)
        return chosen / chosen.sum(-1, keepdim=True), experts.masked_fill(~active[:, None], len(self.gate_up))

    def _experts(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        order = experts.flatten().argsort(stable=True)
        bounds = torch.arange(len(self.gate_up), device=x.device)
        ends = torch.searchsorted(experts.flatten()[order], bounds, right=True).to(torch.int32)
        gate, up = grouped_linear(x[order // self.num_chosen], self.gate_up, ends).chunk(2, dim=-1)
        out = grouped_linear(functional.silu(gate) * up, self.down, ends)
        by_row = torch.empty_like(out).index_copy_(0, order, out).view(len(x), self.num_chosen, -1)
        # A product instead of a sum of scaled rows: that would hold a copy of all of them in float32.
        return torch.bmm(weights[:, None].to(x.dtype), by_row)[:, 0]
