"""Free memory of this machine or container. Read once, when the memory plan is made for a CPU."""

from __future__ import annotations

from pathlib import Path


def host_free_bytes(root: Path = Path("/")) -> int:
    """What can be taken without swapping: the kernel's estimate, or what the container's limit still allows if that is less."""
    free = _available(root / "proc/meminfo")
    limit, used = (_number(root / "sys/fs/cgroup" / name) for name in ("memory.max", "memory.current"))
    return free if limit is None or used is None else min(free, max(limit - used, 0))


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{meminfo} names no MemAvailable; give --memory-bytes")


def _number(path: Path) -> int | None:
    """The number in a cgroup file; None without the file or without a limit (`max`)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
