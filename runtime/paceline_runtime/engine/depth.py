"""How many drafts a step verifies: fixed, or chosen per step from what acceptance and steps were measured to be.

The engine asks it before each plan, and tells it of every step's results. It knows no request and reads no clock. It shortens
only the verify: a draft's rows depend on its width, so the draft always runs as wide as configured.
"""

from __future__ import annotations

from collections.abc import Sequence

_MEMORY = 0.9
"""Weight of the past in running means: about ten steps."""
_EXPLORE_EVERY = 48
"""Steps between trials of a depth whose figures may be stale: at most one step in 48 is not the best known one."""


class FixedDepth:
    """Always the configured depth."""

    def __init__(self, num_drafts: int) -> None:
        self._num_drafts = num_drafts

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths that may be chosen, the likeliest first."""
        return (self._num_drafts,)

    def choose(self, num_decoding: int) -> int:
        """Drafts to verify in the next step of `num_decoding` rows."""
        return self._num_drafts

    def observed(self, depth: int, num_decoding: int, seconds: float | None, accepted_drafts: Sequence[int]) -> None:
        """Nothing to learn."""

    def forget(self) -> None:
        """Nothing was learned."""


class AdaptiveDepth:
    """The depth with the most tokens per second, from the running acceptance of each position and the time of each depth.

    Tokens per step at depth d are 1 + sum of P(draft i is accepted) for i up to d. Times are kept per depth and power of two
    of rows. A depth not measured yet is tried first, deepest first; later a neighbour of the best is tried now and then, so
    that depth 0 is left again when the text becomes predictable.
    """

    def __init__(self, num_drafts: int) -> None:
        self._depths = sorted({0, 1, min(3, num_drafts), num_drafts})
        self.forget()

    @property
    def depths(self) -> tuple[int, ...]:
        """The depths that may be chosen, the likeliest first."""
        return tuple(reversed(self._depths))

    def forget(self) -> None:
        """Begin anew: what the warm-up took says nothing, since it loads and compiles kernels."""
        self._reached = [0.5] * self._depths[-1]
        self._seconds: dict[tuple[int, int], float] = {}
        self._num_choices = 0

    def choose(self, num_decoding: int) -> int:
        """Drafts to verify in the next step of `num_decoding` rows."""
        self._num_choices += 1
        bucket = num_decoding.bit_length()
        unknown = [depth for depth in self._depths if (bucket, depth) not in self._seconds]
        if unknown:
            return unknown[-1]
        best = max(self._depths, key=lambda depth: self._tokens(depth) / self._seconds[bucket, depth])
        if self._num_choices % _EXPLORE_EVERY == 0:
            return self._neighbour(best)
        return best

    def observed(self, depth: int, num_decoding: int, seconds: float | None, accepted_drafts: Sequence[int]) -> None:
        """A step verified `depth` drafts of each row and accepted so many; `seconds` None when it also did other work."""
        if not num_decoding:
            return  # nothing was verified: no draft was rejected either
        if seconds is not None:
            key = (num_decoding.bit_length(), depth)
            past = self._seconds.get(key, seconds)
            # At most double: a first step that loads kernels would keep its depth from being tried for thousands of steps.
            self._seconds[key] = _mean(min(past, 2 * seconds), seconds)
        for position in range(depth):
            share = sum(accepted > position for accepted in accepted_drafts) / num_decoding
            self._reached[position] = _mean(self._reached[position], share)

    def _tokens(self, depth: int) -> float:
        return 1.0 + sum(self._reached[:depth])

    def _neighbour(self, best: int) -> int:
        index = self._depths.index(best)
        up = self._num_choices // _EXPLORE_EVERY % 2 == 0
        return self._depths[min(index + 1, len(self._depths) - 1) if up or index == 0 else index - 1]


def _mean(past: float, now: float) -> float:
    return _MEMORY * past + (1.0 - _MEMORY) * now
