"""Warnings about a model's objects, out of their Events. `waits` says whom to ask about; the gates and `status` tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Object = dict[str, Any]


class Warning(NamedTuple):
    """The newest warning about an object."""

    reason: str
    message: str


@dataclass(frozen=True)
class Warnings:
    """By the uid of the object; `claims` is what the claims' warnings say, in one sentence."""

    by_uid: Mapping[str, Warning] = field(default_factory=dict)
    claims: str = ""

    def about(self, found: Object) -> Warning | None:
        return self.by_uid.get(found["metadata"].get("uid", ""))

    def with_claims(self, message: str) -> str:
        """A scheduler's words, and why the claims are not bound that it waits for."""
        return f"{message}; {self.claims}" if self.claims else message


def warnings_of(found: Mapping[str, Warning], objects: Iterable[Object]) -> Warnings:
    """The answers about these objects."""
    told = [
        f"claim {one['metadata']['name']}: {warning.reason}: {warning.message}"
        for one in objects
        if one["kind"] == "PersistentVolumeClaim" and (warning := found.get(one["metadata"].get("uid", "")))
    ]
    return Warnings(found, "; ".join(told))


def newest(events: Iterable[Object]) -> Warning | None:
    """The newest of some Events; those of old controllers and of new ones have their time in different fields."""
    last = max(events, key=_time, default=None)
    return Warning(last.get("reason") or "", last.get("message") or "") if last else None


def _time(event: Object) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time) for time in times if time), str(event["metadata"].get("creationTimestamp", "")))
