"""Copies to the device that a launch need not wait for, and copies from it that are waited for when results are collected."""

from __future__ import annotations

from typing import Any

import torch


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A device tensor of (nested) Python numbers. A plain `.to(device)` would wait for all earlier work on a GPU's stream."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class Uploads:
    """Small integer inputs of a step, by name: uploaded again only when they change, which between decode steps is rare."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: dict[str, tuple[list[Any], torch.Tensor]] = {}

    def ints(self, name: str, values: list[int]) -> torch.Tensor:
        """int64 [B]."""
        return self._get(name, values, values)

    def padded(self, name: str, rows: list[tuple[int, ...]]) -> torch.Tensor:
        """int64 [B, P]: rows of different length, padded with 0."""
        last = self._last.get(name)
        if last is not None and last[0] == rows:
            return last[1]
        width = max(1, *(len(row) for row in rows))
        return self._get(name, rows, [[*row, *[0] * (width - len(row))] for row in rows])

    def _get(self, name: str, key: list[Any], values: Any) -> torch.Tensor:
        last = self._last.get(name)
        if last is None or last[0] != key:
            last = self._last[name] = key, upload(values, torch.int64, self._device)
        return last[1]


class HostCopy:
    """A device tensor on its way to the host: on a GPU to pinned memory, behind an event; on CPU it is the tensor itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "cuda":
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event: torch.cuda.Event | None = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host, self._event = tensor, None

    def read(self) -> torch.Tensor:
        """The host tensor, once it has arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
