"""What keeps a cluster alive: a FIFO that its supervisor reads and its holders keep open for writing.

The kernel counts: when the last holder closes it or dies, however it dies, the supervisor reads the end of file and
takes the cluster down. The other way round a writer sees when the last reader, and so the cluster, is gone.
"""

import os
import select
from pathlib import Path


def create(path: Path) -> int:
    """Makes the FIFO and returns its reading end, for the supervisor's standard input."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def hold(path: Path) -> int:
    """A writing end. Raises OSError when nobody reads, that is when no cluster runs."""
    return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def has_reader(writer: int) -> bool:
    """Whether the cluster behind this writing end still runs."""
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    return not any(events & select.POLLERR for _, events in poll.poll(0))
