"""How well drafts fit, out of the serving pods' Prometheus text. Pure: `scrape` fetches the text, this module adds up.

The figures are over the life of the running pods: a draft that does not fit shows from the first request on, and time does
not mend the draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_operator.names import METRIC_ACCEPTED, METRIC_DRAFTED, METRIC_STEPS

# Below this many drafted tokens a rate says nothing.
MIN_DRAFTED = 200
# A fitting draft accepts well above this even on hard text; one that does not fit accepts almost nothing.
MIN_RATE = 0.02
# Figures that changed by less than this tell a reader nothing new: a busy model would write its status for ever.
RATE_STEP, TOKENS_STEP = 0.05, 0.25
# What a pod says is bounded: the sum over all pods must fit the status.
MAX_COUNT = 1 << 50
MAX_TOKENS_PER_STEP = 9999.0


@dataclass(frozen=True)
class Counters:
    """Token and step counts of one pod or of several."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(self.drafted + other.drafted, self.accepted + other.accepted, self.steps + other.steps)


def parse_counters(text: str) -> Counters:
    """The three counters out of an exposition. Label sets of one name are added up, and other lines are ignored.

    ValueError where one of them is not a number, OverflowError where it is infinite.
    """
    totals = dict.fromkeys((METRIC_DRAFTED, METRIC_ACCEPTED, METRIC_STEPS), 0.0)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        name, labels, rest = name.partition("{")
        if name in totals:
            # Label values may hold spaces, so the value is what follows the last brace.
            number, *_ = (line.rpartition("}")[2] if labels or rest else value).split()
            totals[name] += float(number)
    return Counters(*(min(max(int(total), 0), MAX_COUNT) for total in totals.values()))


def status_fields(samples: Iterable[Counters], previous: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """`status.acceptance` from the pods' samples; the previous figures while they still tell the truth or no pod answers.

    Pods that have drafted little are new: what other pods accepted, with another draft perhaps, says nothing of these.
    """
    samples = list(samples)
    total = sum(samples, Counters())
    if not samples:
        return dict(previous)
    if total.drafted < MIN_DRAFTED:
        return {}
    accepted = min(total.accepted, total.drafted)
    fields = {
        "rate": f"{accepted / total.drafted:.3f}",
        "tokensPerStep": f"{min(1 + accepted / max(total.steps, 1), MAX_TOKENS_PER_STEP):.2f}",
        "draftedTokens": total.drafted,
        "sampledAt": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return fields if _is_news(previous, fields) else dict(previous)


def _is_news(previous: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether a reader would act on the new figures otherwise than on the previous ones."""
    if not previous:
        return True
    rates = [float(one["rate"]) for one in (previous, fields)]
    tokens = [float(one["tokensPerStep"]) for one in (previous, fields)]
    has_turned = (rates[0] < MIN_RATE) != (rates[1] < MIN_RATE)
    return has_turned or abs(rates[0] - rates[1]) >= RATE_STEP or abs(tokens[0] - tokens[1]) >= TOKENS_STEP


def verdict(algorithm: str, fields: Mapping[str, Any]) -> tuple[str, str, str]:
    """(status, reason, message) of condition AcceptanceHealthy."""
    if algorithm == "off":
        return "True", "SpeculationOff", "nothing is drafted"
    drafted = fields.get("draftedTokens", 0)
    if drafted < MIN_DRAFTED:
        return "Unknown", "TooFewTokens", f"judged from {MIN_DRAFTED} drafted tokens on"
    rate = float(fields["rate"])
    if rate < MIN_RATE:
        return (
            "False",
            "AcceptanceCollapsed",
            f"{rate:.1%} of {drafted} drafted tokens were accepted: the draft does not fit the target's weights; "
            "use the draft that was trained for this target and revision",
        )
    return "True", "Measured", f"{rate:.1%} of the drafted tokens were accepted, {fields['tokensPerStep']} tokens a step"
