"""Device memory by name, for `paceline plan`, which has no device to ask."""

from __future__ import annotations

from paceline_compat.memory.sizes import parse_size

_MIB = 1 << 20

DEVICE_BYTES = {
    "T4": 15_360 * _MIB,
    "L4": 23_034 * _MIB,
    "A10": 23_028 * _MIB,
    "RTX-4090": 24_564 * _MIB,
    "RTX-5090": 32_607 * _MIB,
    "A100-40GB": 40_960 * _MIB,
    "L40S": 46_068 * _MIB,
    "A100-80GB": 81_920 * _MIB,
    "H100": 81_559 * _MIB,
    "H200": 143_771 * _MIB,
    "B200": 183_359 * _MIB,
}
"""Total memory as the driver reports it (nvidia-smi, memory.total)."""


def is_device(text: str) -> bool:
    """Whether a text names a device of the table."""
    return _device(text) in DEVICE_BYTES


def budget_bytes(text: str, memory_ratio: float) -> int:
    """A device's name, of whose memory `memory_ratio` may be used, or a size, all of it. ValueError for neither."""
    if is_device(text):
        return int(DEVICE_BYTES[_device(text)] * memory_ratio)
    try:
        return parse_size(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither a size (80GiB) nor one of {', '.join(DEVICE_BYTES)}") from None


def _device(text: str) -> str:
    return text.upper().replace("_", "-")
