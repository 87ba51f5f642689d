"""The gated feed-forward layer."""

from __future__ import annotations

import torch
from torch.nn import functional

from paceline_runtime.layers.linear import Linear

_MANY_ROWS = 64


class GatedMlp:
    """`down(silu(gate(x)) * up(x))`, the rows of gate and up stacked in one matrix.

    Few rows are bound by reading weights, where one large product is best. For many rows two products over the halves
    are: their outputs are contiguous and stay in the cache (256 rows of a 576 x 1536 layer on a CPU: 9.5 ms against 10.9).
    """

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up, self.down = gate_up, down
        size = gate_up.num_rows // 2
        self._gate, self._up = gate_up.rows(0, size), gate_up.rows(size, 2 * size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] >= _MANY_ROWS:
            gate, up = self._gate(x), self._up(x)
        else:
            gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)
