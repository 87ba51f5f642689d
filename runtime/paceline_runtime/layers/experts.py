"""A mixture of experts: each row goes to the few experts that its router likes most, and through one that all rows share.

The family `qwen3_5_moe` puts it where others have an MLP. It knows neither tokens nor requests.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_compat.facts.records import MoeFacts
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.mlp import Mlp, gated_mlp
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.weights.base import WeightStack


class Experts:
    """gate_up: [E, 2 I, H], gate before up; down: [E, H, I]. Rows that are not active reach no expert.

    Rows are sorted by expert and multiplied group by group; how many rows an expert got is never read back to the host.
    """

    def __init__(
        self,
        router: Linear,
        gate_up: WeightStack,
        down: WeightStack,
        shared: Mlp,
        shared_gate: Linear,
        *,
        num_chosen: int,
    ) -> None:
        self.router, self.gate_up, self.down, self.num_chosen = router, gate_up, down, num_chosen
        self.shared, self.shared_gate = shared, shared_gate
        self.num_experts = gate_up.shape[0]

    def __call__(self, x: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Rows x [N, H], active bool [N]: [N, H]."""
        weights, experts = self.route(x, active)
        mixed = self._mix(x, weights, experts)
        return mixed + self.shared_gate(x).sigmoid() * self.shared(x)

    def route(self, x: torch.Tensor, active: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [N, k], which sum to 1, and expert ids int64 [N, k] of each row; id E for rows that are not active."""
        logits = self.router(x)
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        chosen, experts = probabilities.topk(self.num_chosen, dim=-1)
        return chosen / chosen.sum(-1, keepdim=True), experts.masked_fill(~active[:, None], self.num_experts)

    def _mix(self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        order = experts.flatten().argsort(stable=True)
        bounds = torch.arange(self.num_experts, device=x.device)
        ends = torch.searchsorted(experts.flatten()[order], bounds, right=True).to(torch.int32)
        gate, up = self.gate_up.matmul(x[order // self.num_chosen], ends).chunk(2, dim=-1)
        out = self.down.matmul(functional.silu(gate) * up, ends)
        by_row = torch.empty_like(out).index_copy_(0, order, out).view(len(x), self.num_chosen, -1)
        # A product instead of a sum of scaled rows: that would hold a copy of all of them in float32.
        return torch.bmm(weights[:, None].to(x.dtype), by_row)[:, 0]


def mixture(parameters: Parameters, name: str, hidden_size: int, sizes: MoeFacts) -> Experts:
    """Experts stored below `name`: stacked, or each one's three matrices on their own."""
    count, inner, prefix = sizes.num_experts, sizes.intermediate_size, f"{name}.experts"
    gate_up = [{f"{prefix}.{expert}.{part}_proj": inner for part in ("gate", "up")} for expert in range(count)]
    down = [{f"{prefix}.{expert}.down_proj": hidden_size} for expert in range(count)]
    return Experts(
        parameters.linear({f"{name}.gate": count}, hidden_size, split=None),
        parameters.stack(f"{prefix}.gate_up_proj", gate_up, hidden_size),
        parameters.stack(f"{prefix}.down_proj", down, inner),
        gated_mlp(parameters, f"{name}.shared_expert", hidden_size, sizes.shared_intermediate_size),
        parameters.linear({f"{name}.shared_expert_gate": 1}, hidden_size, split=None),
        num_chosen=sizes.num_experts_per_token,
    )
