"""Which kernels a draft runs with: plain torch anywhere, Triton on a GPU.

Called by the loader and the self-check, which compares the two. It refuses to know what the operations are for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_kernels.grouped_conv import grouped_conv
from paceline_kernels.selector import select_path
from paceline_kernels.window_attention import window_attention


@dataclass(frozen=True)
class DraftOps:
    """Implementations with the signatures of the references in `paceline_kernels`."""

    grouped_conv: Callable[..., torch.Tensor] = grouped_conv
    window_attention: Callable[..., torch.Tensor] = window_attention
    select_path: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select_path


REFERENCE = DraftOps()


def ops_for(device: torch.device) -> DraftOps:
    """The fast path of a device; Triton is imported only where it runs."""
    if device.type != "cuda":
        return REFERENCE
    from paceline_kernels.grouped_conv.kernel import grouped_conv_kernel
    from paceline_kernels.selector.kernel import select_path_kernel
    from paceline_kernels.window_attention.kernel import window_attention_kernel

    return DraftOps(grouped_conv_kernel, window_attention_kernel, select_path_kernel)
