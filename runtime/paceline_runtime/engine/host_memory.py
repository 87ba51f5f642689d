"""Free memory of this machine or container. The memory plan of a CPU reads it."""

from __future__ import annotations

from pathlib import Path


def host_free_bytes(root: Path = Path("/")) -> int:
    """What can be taken without swapping: the kernel's estimate, or what the container's limit still allows if that is less.

    A container is charged for the files that it has read, such as a checkpoint; the kernel takes those pages back on demand.
    """
    free, group = _available(root / "proc/meminfo"), root / "sys/fs/cgroup"
    limit, used = (_number(group / name) for name in ("memory.max", "memory.current"))
    if limit is None or used is None:
        return free
    return min(free, max(limit - max(used - _file_bytes(group / "memory.stat"), 0), 0))


def _available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{meminfo} names no MemAvailable; give --memory-bytes")


def _file_bytes(stat: Path) -> int:
    """Bytes of cached files among what a cgroup is charged for; 0 where it does not say."""
    try:
        words = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(value) for name, value in words if name in ("active_file", "inactive_file"))


def _number(path: Path) -> int | None:
    """The number in a cgroup file; None without the file or without a limit (`max`)."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
