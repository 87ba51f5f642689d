"""Which implementation runs: Triton for the float16, bfloat16 and float32 tensors of a GPU, plain torch for the rest.

Triton is imported when a CUDA tensor first comes: a CPU machine need not have it.
"""

from __future__ import annotations

import torch

from paceline_kernels.paged_attention import reference
from paceline_kernels.paged_attention.reference import VerifyContext

_KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def verify_context(
    page_table: torch.Tensor, lengths: torch.Tensor, width: int, page_size: int, dtype: torch.dtype, first: int = 0
) -> VerifyContext | None:
    """What all layers of one verify share; None where the kernel runs, which needs nothing prepared."""
    if _uses_kernel(lengths.device, dtype):
        return None
    return reference.verify_context(page_table, lengths, width, page_size, dtype, first)


def verify_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    page_table: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    context: VerifyContext | None = None,
    first: int = 0,
) -> torch.Tensor:
    """The reference of the same name, or the kernel; `context` is what `verify_context` gave for this batch."""
    if context is None and _uses_kernel(q.device, q.dtype):
        from paceline_kernels.paged_attention import kernel

        return kernel.verify_attention(q, keys, values, page_table, lengths, scale, first)
    return reference.verify_attention(q, keys, values, page_table, lengths, scale, context, first)


def _uses_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype in _KERNEL_DTYPES
