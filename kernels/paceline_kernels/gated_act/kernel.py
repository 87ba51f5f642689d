"""The gated activation of a feed-forward layer in Triton: it reads gate and up as pairs, so every access is contiguous.

The face calls it on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def gated_act(both: torch.Tensor) -> torch.Tensor:
    """`gated_act` of the reference."""
    num_rows, width = both.shape[0], both.shape[1] // 2
    both = both if both.is_contiguous() else both.contiguous()
    out = torch.empty((num_rows, width), dtype=both.dtype, device=both.device)
    _gated_act[(num_rows, triton.cdiv(width, _BLOCK))](both_ptr=both, out_ptr=out, width=width, BLOCK=_BLOCK)
    return out


@triton.jit
def _gated_act(both_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    pair, c = tl.program_id(1) * BLOCK * 2 + tl.arange(0, BLOCK * 2), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    both = tl.load(both_ptr + row * width * 2 + pair, mask=pair < width * 2, other=0.0).to(tl.float32)
    gate, up = tl.split(tl.reshape(both, (BLOCK, 2)))
    tl.store(out_ptr + row * width + c, (gate * tl.sigmoid(gate) * up).to(out_ptr.dtype.element_ty), mask=c < width)
