"""One stored tensor onto a device: floats as they are stored, ggml blocks dequantized. `fill` and benchmarks call it.

`paceline_compat` reads the headers, this module the bytes behind them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.facts.records import TargetFacts
from paceline_compat.formats.tensors import TensorInfo
from paceline_runtime.loaders.dequantize import dequantize

_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_target_tensor(facts: TargetFacts, name: str, device: torch.device) -> torch.Tensor:
    """The tensor of this name as the family knows it: a converter's reordering of the rows of q and k is undone."""
    tensor = read_tensor(facts.tensors[name], device)
    if facts.rope.is_neox or not name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
        return tensor
    return _halves(tensor, facts.num_heads if ".q_proj." in name else facts.num_kv_heads)


def read_tensor(info: TensorInfo, device: torch.device) -> torch.Tensor:
    """The tensor as stored floats, or dequantized to float32; unpacked on `device`, to which only packed bytes go."""
    data = _read_bytes(info).to(device)
    if info.dtype in _FLOATS:
        return data.view(_FLOATS[info.dtype]).view(info.shape)
    return dequantize(data, info.dtype, info.shape)


def _read_bytes(info: TensorInfo) -> torch.Tensor:
    """The bytes of a tensor on disk as uint8 [num_bytes].

    Read, not mapped: touched pages of a mapping count as the process's memory until it is closed.
    """
    data = torch.empty(info.num_bytes, dtype=torch.uint8)
    with Path(info.file).open("rb", buffering=0) as file:
        file.seek(info.offset)
        view, done = data.numpy(), 0
        while done < info.num_bytes and (count := file.readinto(view[done:].data)):
            done += count
    if done != info.num_bytes:
        raise MetadataError(info.file, f"ended inside tensor {info.name!r}: it changed while it was read")
    return data


def _halves(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of each head from pairs (0, 1), (2, 3) ... back to halves: ggml rotates neighbours, we rotate halves."""
    return rows.view(num_heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
