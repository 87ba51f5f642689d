"""Opens a Hugging Face folder: config.json, generation_config.json and safetensors files, sharded or not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.fields import read_json
from paceline_compat.safetensors_header import read_folder
from paceline_compat.source import LocalFolder, LocalSource
from paceline_compat.tensors import TensorInfo
from paceline_runtime.loaders.checkpoint import Checkpoint, StoredTensor, read_bytes
from paceline_runtime.text.end_tokens import folder_end_ids

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def open_folder(path: Path, *, config_only: bool = False) -> Checkpoint:
    """Read config and headers; tensors are left out with `config_only`, whose folder needs none."""
    config = _read_config(path)
    infos = {} if config_only else read_folder(LocalFolder(path))
    _check_dtypes(path, infos)
    return Checkpoint(str(path), _architecture(path, config), config, stored_tensors(infos))


def stored_tensors(infos: Mapping[str, TensorInfo]) -> tuple[StoredTensor, ...]:
    """Tensors by the names that they are to have, in the order of the files."""
    in_file_order = sorted(infos.items(), key=lambda item: (item[1].file, item[1].offset))
    return tuple(StoredTensor(name, i.shape, i.num_bytes, functools.partial(_read, i)) for name, i in in_file_order)


def _read(info: TensorInfo, device: torch.device) -> torch.Tensor:
    return read_bytes(info).to(device).view(_DTYPES[info.dtype]).view(info.shape)


def _check_dtypes(path: Path, infos: dict[str, TensorInfo]) -> None:
    packed = sorted({info.dtype for info in infos.values()} - _DTYPES.keys())
    if packed:
        raise MetadataError(
            str(path),
            f"holds tensors of {', '.join(packed)}, and only {', '.join(_DTYPES)} are read",
            "use an unquantized checkpoint",
        )


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(LocalSource(path / "config.json"))
    return {**config, "eos_token_id": folder_end_ids(path, config)}


def _architecture(path: Path, config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise MetadataError(str(path / "config.json"), f"architectures must name one architecture, got {names!r}")
    return names[0]
