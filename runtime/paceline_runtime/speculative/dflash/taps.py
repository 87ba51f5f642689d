"""Takes the outputs of tapped target layers during one target forward and sums their projections.

The proposer makes one for each forward, and the target's layer loop calls it. The concatenated features that the draft's `fc`
is defined on never exist: `fc` is one matrix per tap, and a forward holds one [N, H] sum whatever the number of taps.
"""

from __future__ import annotations

import torch

from paceline_runtime.speculative.dflash.draft import Draft


class TapSum:
    """A `FeatureSink`; `projected` is the sum over taps of `fc_i @ h_i`, [N, H] in at least float32."""

    def __init__(self, draft: Draft) -> None:
        self._taps = draft.taps
        self._missing = set(self._taps)
        self._dtype = draft.dtype
        self._sum: torch.Tensor | None = None

    def wants(self, layer: int) -> bool:
        """Whether the draft reads this layer's output."""
        return layer in self._taps

    def layer_output(self, layer: int, hidden: torch.Tensor) -> None:
        """Add one layer's part."""
        part = self._taps[layer](hidden.to(self._dtype)).to(torch.promote_types(self._dtype, torch.float32))
        self._sum = part if self._sum is None else self._sum + part
        self._missing.remove(layer)

    @property
    def projected(self) -> torch.Tensor:
        """The finished sum."""
        assert not self._missing, f"the target gave no output of layers {self._missing}"
        assert self._sum is not None
        return self._sum
