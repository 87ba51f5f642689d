"""The norm layer. `Parameters` makes it; the decoder, the draft and the MTP head call it."""

from __future__ import annotations

import torch

from paceline_kernels.add_norm import add_norm, norm
from paceline_kernels.backend import Backend


class RmsNorm:
    """RMS norm over the last dimension with a learned weight, computed in at least float32.

    A weight wider than the rows, as zero-centred ones are, widens the computation and not the result.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def add(
        self, hidden: torch.Tensor, added: torch.Tensor | None, *, backend: Backend = Backend.AUTO
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream [N, H] with what the last part of a layer gave, and its norm for the next part.

        `added` may come as parts [P, N, H] (`Linear.to_be_added`); None where nothing is to be added.
        """
        if added is None:
            return hidden, norm(hidden, self.weight, self.eps, backend=backend)
        return add_norm(hidden, added, self.weight, self.eps, backend=backend)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view_as(x)
