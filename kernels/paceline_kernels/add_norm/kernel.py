"""The residual addition and the norm that follows it as one Triton kernel: one program computes one row.

The face calls it on a GPU, where plain torch makes up to six launches of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def add_norm(
    residual: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_norm` of the reference; the sum is rounded to the rows' dtype, the norm is float32 and rounded once."""
    hidden = torch.empty_like(residual, memory_format=torch.contiguous_format)
    return hidden, _launch(residual, added, hidden, weight, eps)


def norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`norm` of the reference."""
    return _launch(hidden, None, None, weight, eps)


def _launch(
    residual: torch.Tensor, added: torch.Tensor | None, hidden: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    num_rows, size = residual.shape
    parts = 0 if added is None else added.shape[0] if added.dim() == 3 else 1
    out = torch.empty((num_rows, size), dtype=residual.dtype, device=residual.device)
    block = triton.next_power_of_2(size)
    _add_norm[(num_rows,)](
        residual_ptr=residual,
        added_ptr=added,
        weight_ptr=weight,
        hidden_ptr=hidden,
        out_ptr=out,
        size=size,
        residual_stride=residual.stride(0),
        residual_step=residual.stride(1),
        added_stride=added.stride(-2) if added is not None else 0,
        added_step=added.stride(-1) if added is not None else 0,
        part_stride=added.stride(0) if added is not None else 0,
        eps=eps,
        PARTS=parts,
        BLOCK=block,
        num_warps=max(1, min(block // 512, 16)),
    )
    return out


@triton.jit
def _add_norm(
    residual_ptr,
    added_ptr,
    weight_ptr,
    hidden_ptr,
    out_ptr,
    size,
    residual_stride,
    residual_step,
    added_stride,
    added_step,
    part_stride,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = c < size
    weight = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(residual_ptr + row * residual_stride + c * residual_step, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 0:
        added_at = added_ptr + row * added_stride + c * added_step
        added = tl.load(added_at, mask=inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            added += tl.load(added_at + part * part_stride, mask=inside, other=0.0).to(tl.float32)
        # The sum of the parts is rounded as a whole product would have been.
        value += added.to(hidden_ptr.dtype.element_ty).to(tl.float32)
        rounded = value.to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + row * size + c, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / size + eps)
    tl.store(out_ptr + row * size + c, (value * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)
