"""The gated activation of a feed-forward layer, in plain torch.

The face calls it.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def gated_act(both: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of rows [N, 2 I] that hold gate and up in turn: [N, I] in their dtype, computed in at least float32."""
    wide = both.to(torch.promote_types(both.dtype, torch.float32))
    return (functional.silu(wide[:, 0::2]) * wide[:, 1::2]).to(both.dtype)
