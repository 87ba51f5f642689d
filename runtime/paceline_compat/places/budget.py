"""A limit on what one inspection may read and how long it may take. All remote reads of a pair share one budget."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from paceline_compat.errors import SourceError


@dataclass
class Budget:
    """What all reads of one inspection may cost together: bytes, and seconds until a monotonic deadline."""

    max_bytes: int = 256 << 20
    timeout_s: float = 60.0
    _deadline: float = field(init=False)
    _spent_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.timeout_s

    def left_s(self, name: str) -> float:
        """Seconds left, or SourceError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SourceError(name, f"not read within {self.timeout_s:g} s", "allow more time")
        return left

    def spend(self, name: str, num_bytes: int) -> None:
        """Account for bytes before they are asked for."""
        self._spent_bytes += num_bytes
        if self._spent_bytes > self.max_bytes:
            raise SourceError(name, f"headers need more than the {self.max_bytes} bytes allowed")
