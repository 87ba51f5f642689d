"""Takes the outputs of tapped target layers during one target forward and sums their projections.

The proposer makes one for each forward, and the target's layer loop calls it. The draft's `fc` is defined on the features of
all taps side by side. Few rows are projected so: one large product reads the matrix faster than one for each tap. The features
of many rows would take too much memory: there `fc` is one matrix per tap, and a forward holds one [N, H] sum.
"""

from __future__ import annotations

import torch

from paceline_kernels.skinny_linear import MAX_ROWS
from paceline_runtime.speculative.dflash.draft import Draft


class TapSum:
    """A `FeatureSink`; `projected` is the sum over taps of `fc_i @ h_i`, [N, H] in at least float32."""

    def __init__(self, draft: Draft) -> None:
        self._taps, self._fc = draft.taps, draft.fc
        self._missing = set(self._taps)
        self._dtype = draft.dtype
        self._wide = torch.promote_types(draft.dtype, torch.float32)
        self._few: dict[int, torch.Tensor] = {}
        self._sum: torch.Tensor | None = None

    def wants(self, layer: int) -> bool:
        """Whether the draft reads this layer's output."""
        return layer in self._taps

    def layer_output(self, layer: int, hidden: torch.Tensor) -> None:
        """Add one layer's part."""
        hidden = hidden.to(self._dtype)
        if len(hidden) <= MAX_ROWS:
            self._few[layer] = hidden
        else:
            part = self._taps[layer](hidden).to(self._wide)
            self._sum = part if self._sum is None else self._sum + part
        self._missing.remove(layer)

    @property
    def projected(self) -> torch.Tensor:
        """The finished sum."""
        assert not self._missing, f"the target gave no output of layers {self._missing}"
        if self._few:
            return self._fc(torch.cat([self._few[layer] for layer in self._taps], dim=-1)).to(self._wide)
        assert self._sum is not None
        return self._sum
