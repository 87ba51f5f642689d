"""Which implementation of an operation runs: its reference in plain torch, or what a GPU has for it.

Every operation with more than one implementation takes a `backend` and asks `runs_kernel`; nothing else chooses by device.
Tests and the draft's self-check name a backend; everyone else leaves the choice to the tensors. It refuses to know the
operations.
"""

from __future__ import annotations

from enum import Enum

import torch


class Backend(Enum):
    """Who computes an operation.

    AUTO:      the kernel on a GPU, the reference elsewhere
    REFERENCE: the reference, on any device
    KERNEL:    what runs on a GPU, on a CPU too, where Triton's interpreter (TRITON_INTERPRET=1) stands in for one
    """

    AUTO = "auto"
    REFERENCE = "reference"
    KERNEL = "kernel"


def runs_kernel(backend: Backend, device: torch.device, *dtypes: torch.dtype) -> bool:
    """Whether an operation over tensors of these dtypes runs as its kernel. Float64 never does: it is there to be exact.

    Raises ValueError when KERNEL is asked for on a device that runs none.
    """
    if backend is Backend.REFERENCE or torch.float64 in dtypes:
        return False
    if device.type == "cuda":
        return True
    if backend is Backend.KERNEL and not _interpreted():
        raise ValueError(f"kernels run on a GPU, not on {device.type}; for Triton's interpreter set TRITON_INTERPRET=1")
    return backend is Backend.KERNEL


def is_compiler_error(error: Exception) -> bool:
    """Whether Triton could not build a kernel for this device: `bench tune` passes over such a cut, nobody else asks."""
    from triton.errors import TritonError

    return isinstance(error, TritonError)


def _interpreted() -> bool:
    # Imported here: a server on a CPU need not have Triton, and is smaller without it.
    import triton

    return bool(triton.knobs.runtime.interpret)
