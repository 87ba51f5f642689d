"""Which cuts the products of few rows get on a device: those of a file over those that are shipped for it.

Whoever loads a model asks once, before any weight is read. It knows devices by name only.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from paceline_kernels.skinny_linear import NO_TILES, TileTable, read_tiles, shipped_tiles
from paceline_runtime.errors import ConfigError

_LOG = logging.getLogger(__name__)
_CUT_DTYPES = (torch.float16, torch.bfloat16)


def device_name(device: torch.device) -> str | None:
    """The name of a GPU; None for a CPU, whose products are not cut."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def shipped_for(device: torch.device) -> TileTable:
    """What is shipped for this device, perhaps nothing."""
    name = device_name(device)
    return NO_TILES if name is None else shipped_tiles(name)


def tiles_for(name: str | None, dtype: torch.dtype, file: str | None) -> TileTable:
    """The table for a device of this name. Raises ConfigError for a file that has no effect, or is no table of this device.

    A device without any is told of in the log: its products all go to torch's library.
    """
    if name is None or dtype not in _CUT_DTYPES:
        if file is not None:
            where = "a CPU" if name is None else str(dtype).removeprefix("torch.")
            raise ConfigError(
                [f"--tiles cuts products of float16 and bfloat16 on a GPU and has no meaning on {where}: drop it"]
            )
        return NO_TILES if name is None else shipped_tiles(name)
    table = shipped_tiles(name)
    if file is not None:
        try:
            return read_tiles(Path(file), name).over(table)
        except ValueError as error:
            raise ConfigError([f"--tiles {error}"]) from None
    if not table.cuts:
        _LOG.warning("no cuts are shipped for %s: few rows are multiplied by torch's library; see `paceline bench tune`", name)
    return table
