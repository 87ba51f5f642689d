"""Copies from the device that are started inside a launch and waited for when results are collected."""

from __future__ import annotations

import torch


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
