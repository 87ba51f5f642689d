"""Finds one object among many rendered ones."""

from typing import Any


def only(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    """The single object of a kind, and of a name where a kind has several."""
    found = [one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]
