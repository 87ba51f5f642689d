"""Copies to the device that a launch need not wait for, and copies from the device that `collect` waits for.

Everything in this folder copies by it. It knows tensors and nothing of what they mean.
"""

from __future__ import annotations

from typing import Any

import torch


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A device tensor of (nested) Python numbers. A plain `.to(device)` would wait for all earlier work on a GPU's stream."""
    host = torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def refill(buffer: torch.Tensor, values: Any) -> None:
    """Overwrite a device tensor with (nested) Python numbers, in the order of its stream, without waiting."""
    host = torch.tensor(values, dtype=buffer.dtype)
    buffer.copy_(host.pin_memory() if buffer.is_cuda else host, non_blocking=True)


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
