"""A line in the log when hardly any draft is accepted, and when that is over. The engine's client feeds it with counters."""

from __future__ import annotations

import logging

from paceline_runtime.messages import Stats

logger = logging.getLogger(__name__)
MIN_DRAFTED = 2000
"""Drafted tokens that are looked at together: fewer say little, since some texts are hard to guess."""
MIN_RATE = 0.02
"""Below it a draft was made for other weights: chance alone gives almost as much. The operator's condition says the same."""


class AcceptanceLog:
    """A line for each change, not for each look."""

    def __init__(self) -> None:
        self._drafted = self._accepted = 0
        self._is_low = False

    def observe(self, stats: Stats) -> None:
        """Take the engine's latest counters, which only grow."""
        drafted, accepted = sum(stats.drafted_by_position), sum(stats.accepted_by_position)
        num_drafted, num_accepted = drafted - self._drafted, accepted - self._accepted
        if num_drafted < MIN_DRAFTED:
            return
        self._drafted, self._accepted = drafted, accepted
        is_low, was_low = num_accepted < MIN_RATE * num_drafted, self._is_low
        self._is_low = is_low
        if is_low and not was_low:
            remedy = "use the draft that was trained for this target and revision, or speculate less"
            logger.warning("%d of the last %d drafted tokens were accepted: %s", num_accepted, num_drafted, remedy)
        elif was_low and not is_low:
            logger.warning("%d of the last %d drafted tokens were accepted: drafts help again", num_accepted, num_drafted)
