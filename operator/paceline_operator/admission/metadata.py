"""Reads remote checkpoints' headers for the webhook, within a small budget, and remembers the judgements.

Only the webhook's handler calls this module; the inspect Job reads for itself. Reads run in threads, since readers are
plain blocking code.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from paceline_compat import MetadataError, inspect_pair, open_location
from paceline_compat.places.http_source import Budget
from paceline_compat.rules.verdict import METADATA_UNAVAILABLE
from paceline_operator.errors import Problem
from paceline_operator.gates.inspection import UNKNOWN
from paceline_operator.gates.judgement import Judgement, judge, options_of
from paceline_operator.objects.inspect import inspect_key
from paceline_operator.spec.model import Model

MAX_ENTRIES = 512
KNOWN_FOR_S = 600.0
# Long enough that a batch of applies asks a dead hub once, short enough that its return is noticed.
UNKNOWN_FOR_S = 20.0
BUDGET_BYTES = 64 << 20


@dataclass(frozen=True)
class _Entry:
    judgement: Judgement
    expires_at: float


class Metadata:
    """A cache of judgements, keyed by what each is about. `clock` is a monotonic clock in seconds."""

    def __init__(self, hub_endpoint: str, budget_s: float, clock: Callable[[], float]) -> None:
        self._hub_endpoint, self._budget_s, self._clock = hub_endpoint, budget_s, clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    async def judge(self, model: Model) -> Judgement:
        """The judgement on a model whose sources are all remote; its outcome is Unknown when the budget is spent."""
        key = inspect_key(model)
        entry = self._entries.get(key)
        if entry and entry.expires_at > self._clock():
            return entry.judgement
        judgement = await self._look(model)
        lifetime_s = UNKNOWN_FOR_S if judgement.outcome == UNKNOWN else KNOWN_FOR_S
        self._entries[key] = _Entry(judgement, self._clock() + lifetime_s)
        self._entries.move_to_end(key)
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)
        return judgement

    async def _look(self, model: Model) -> Judgement:
        try:
            async with asyncio.timeout(self._budget_s):
                return await asyncio.to_thread(self._read, model)
        except TimeoutError:
            return _unknown(f"headers were not read within {self._budget_s:g} s")

    def _read(self, model: Model) -> Judgement:
        budget = Budget(max_bytes=BUDGET_BYTES, timeout_s=self._budget_s)
        # An empty environment: a token of the operator's own must not decide what users are told.
        locations = [source.location.partition("#")[0] for source in model.spec.sources]
        try:
            places = [
                open_location(location, endpoint=self._hub_endpoint, budget=budget, environment={}) for location in locations
            ]
        except MetadataError as error:
            return _unknown(str(error))
        target, draft = places[0], places[1] if len(places) > 1 else None
        return judge(inspect_pair(target, draft, options_of(model)).verdict)


def _unknown(message: str) -> Judgement:
    return Judgement(UNKNOWN, METADATA_UNAVAILABLE, (Problem("", message),))
