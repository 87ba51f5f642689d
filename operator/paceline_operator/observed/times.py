"""Reads timestamps of objects. Pure; whoever writes them may write anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def instant(text: object) -> datetime | None:
    """The instant of a timestamp, None for other text."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def seconds_since(text: object, now: datetime) -> float:
    """0 where the time is not known, or lies ahead: the clock is another machine's."""
    then = instant(text)
    return max(0.0, (now - then).total_seconds()) if then else 0.0


def age_s(found: dict[str, Any], now: datetime) -> float:
    """Seconds since an object was made."""
    return seconds_since(found["metadata"].get("creationTimestamp"), now)
