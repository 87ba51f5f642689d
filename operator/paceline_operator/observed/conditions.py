"""Reads the usual list of conditions in an object's status. Pure; the module knows no kinds."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def condition(found: Object | None, type_: str) -> Object | None:
    """One condition of an object that has the usual list of them."""
    conditions = (found or {}).get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == type_), None)


def is_true(found: Object | None, type_: str) -> bool:
    one = condition(found, type_)
    return one is not None and one["status"] == "True"
