"""From a memory layout to tensors: the one place where the memory of tokens, pages, seats and slots is taken.

Called by `engine.build` with the plan's layout, and by whoever needs a small one. Owners take their tensors by name and make
none. Memory is zeroed once: a masked key weighs 0, and 0 times an uninitialised NaN would still be NaN.
"""

from __future__ import annotations

import torch

from paceline_compat.memory.layout import Buffer, MemoryLayout

Tensors = dict[str, torch.Tensor]


def allocate(layout: MemoryLayout, device: torch.device) -> Tensors:
    """Every buffer by its name. Raises what torch raises where the memory cannot be had."""
    tensors = {buffer.name: _zeros(buffer, layout.shape(buffer), device) for buffer in layout.buffers}
    assert len(tensors) == len(layout.buffers), "two buffers have one name"
    return tensors


def _zeros(buffer: Buffer, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    dtype = torch_dtype(buffer.dtype)
    if buffer.place == "host":
        return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
    return torch.zeros(shape, dtype=dtype, device=device)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that a plain value names."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The reverse."""
    return str(dtype).removeprefix("torch.")
