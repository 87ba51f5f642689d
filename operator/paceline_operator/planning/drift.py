"""What of a child is not as it should be, and what of that no apply can change. Pure; `plan` uses it.

Others change what we apply: a policy adds a container, sets a pull policy or strips an annotation, each time. What is left
after an apply is remembered, so that the same document is not applied again while nothing else differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from paceline_operator.names import ANNOTATION_APPLIED
from paceline_operator.planning.quantity import parse_quantity, same_quantity

Object = dict[str, Any]
# Where a child differs, and what is there instead.
Difference = tuple[str, str]


class Remainders:
    """What was left after the last apply of each child of one model, by (kind, name)."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], tuple[str, tuple[Difference, ...]]] = {}

    def remember(self, document: Object, answer: Object) -> None:
        """Note what the API server made of a document."""
        left = tuple(differences(answer, document))
        if left:
            self._left[_place(document)] = (stamp_of(document), left)
        else:
            self._left.pop(_place(document), None)

    def needs_apply(self, document: Object, found: Object) -> bool:
        """Whether an apply would change anything, as far as is known."""
        left = tuple(differences(found, document))
        return bool(left) and self._left.get(_place(document)) != (stamp_of(document), left)


def stamp_of(found: Object) -> str:
    """The hash of the document that an object was last applied from; empty when somebody has taken it off."""
    return str((found["metadata"].get("annotations") or {}).get(ANNOTATION_APPLIED, ""))


def contains(found: Any, wanted: Any) -> bool:
    """Whether `found` has all that `wanted` says."""
    return not any(differences(found, wanted))


def differences(found: Any, wanted: Any, path: str = "") -> Iterator[Difference]:
    """The places where `found` lacks what `wanted` says.

    Items of lists match by name, else one by one: an apply takes away no named item of somebody else's. Fields that the server
    adds are ignored. The server also leaves out empty values.
    """
    if isinstance(wanted, Mapping):
        if found is not None and not isinstance(found, Mapping):
            yield path, _text(found)
            return
        for key, value in wanted.items():
            yield from differences((found or {}).get(key), value, f"{path}.{key}")
    elif isinstance(wanted, list):
        pairs = _pairs(found if isinstance(found, list) else [], wanted)
        if pairs is None:
            yield path, _text(found)
            return
        for i, (theirs, ours) in enumerate(pairs):
            yield from differences(theirs, ours, f"{path}[{i}]")
    elif not (found == wanted or (found is None and not wanted) or same_quantity(found, wanted)):
        yield path, _text(found)


def grown(claim: Object, found: Object | None) -> Object:
    """The document of a claim, not smaller than the claim is: whoever let it grow, a claim cannot shrink."""
    if claim["kind"] != "PersistentVolumeClaim" or found is None:
        return claim
    sizes = [one["spec"]["resources"]["requests"]["storage"] for one in (claim, found)]
    asked, has = map(parse_quantity, sizes)
    if asked is None or has is None or has <= asked:
        return claim
    return {**claim, "spec": {**claim["spec"], "resources": {"requests": {"storage": sizes[1]}}}}


def _pairs(found: list[Any], wanted: list[Any]) -> list[tuple[Any, Any]] | None:
    """Which item is to be compared with which; None where the lists cannot be matched."""
    if wanted and _are_named(wanted) and _are_named(found):
        by_name = {one["name"]: one for one in found}
        return [(by_name.get(one["name"]), one) for one in wanted]
    return list(zip(found, wanted, strict=True)) if len(found) == len(wanted) else None


def _are_named(items: list[Any]) -> bool:
    names = [one.get("name") for one in items if isinstance(one, Mapping)]
    return len(names) == len(items) == len(set(names)) and None not in names


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _place(document: Object) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]
