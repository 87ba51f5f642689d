"""What the watches have said: models, and the objects that carry a model's labels. The operator's only memory of the cluster.

Handlers, answers to our own calls and `resync` fill the store; `reconcile` reads it. The store keeps no more of an object than
the operator uses, and never puts an older version over a newer one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

from paceline_operator.cluster.kinds import Kind
from paceline_operator.names import KIND, LABEL_MODEL
from paceline_operator.observed.observed import Observed, observe

Object = dict[str, Any]
# So many deleted objects are remembered as deleted: more than go while one answer is on its way.
MAX_GONE = 1000
# The operator reads a ReplicaSet only to learn who made a pod.
UNREAD = {"Pod": frozenset({"spec"}), "ReplicaSet": frozenset({"spec", "status"})}


class Key(NamedTuple):
    """Which model."""

    namespace: str
    name: str


class Store:
    """Objects by the model that their label names. Anybody may copy a label: `observed` tells what is the model's own."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[tuple[str, str], Object]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()

    def put(self, found: Object) -> Key | None:
        """Remember an object. Returns the model that the object's label names, None when there is no such label."""
        key = model_key(found)
        if key is None or self._is_gone(found):
            return key
        objects, place = self._objects.setdefault(key, {}), _place(found)
        if not _is_older(found, objects.get(place)):
            objects[place] = slim(found)
        return key

    def drop(self, found: Object) -> Key | None:
        """Forget a deleted object, unless another object has its name by now. Returns the model that its label named."""
        key = model_key(found)
        if key is None:
            return None
        self._gone[_uid(found)] = version_of(found)
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        objects, place = self._objects.get(key, {}), _place(found)
        if place in objects and _uid(objects[place]) == _uid(found):
            del objects[place]
        if not objects:
            self._objects.pop(key, None)
        return key

    def known(self, kind: Kind) -> list[Object]:
        """All objects of a kind."""
        return [one for objects in self._objects.values() for place, one in objects.items() if place[0] == kind.kind]

    def replace(self, known: Iterable[Object], found: Iterable[Object]) -> None:
        """Make what was `known` of a kind before a list equal to it. An object that came meanwhile may be missing there."""
        listed = {(model_key(one), _place(one)): one for one in found}
        for one in known:
            if (model_key(one), _place(one)) not in listed:
                self.drop(one)
        for one in listed.values():
            self.put(one)

    def known_of(self, found: Object) -> Object | None:
        """What is known under an object's kind and name."""
        key = model_key(found)
        return self._objects.get(key, {}).get(_place(found)) if key else None

    def is_news(self, found: Object) -> bool:
        """Whether an object is newer than what is known of it: then no watch has shown this version yet."""
        known = self.known_of(found)
        return not self._is_gone(found) and (known is None or version_of(found) > version_of(known))

    def is_status_only(self, found: Object) -> bool:
        """Whether an object differs from what is known of it in nothing but its status."""
        known = self.known_of(found)
        return known is not None and _without_status(slim(found)) == _without_status(known)

    def model(self, key: Key) -> Object | None:
        return self._objects.get(key, {}).get((KIND, key.name))

    def models(self) -> dict[Key, Object]:
        """All models that are known."""
        return {key: found for key in self._objects if (found := self.model(key))}

    def observed(self, key: Key, uid: str) -> Observed:
        """Children and pods of the model with this uid, as a value that later events do not change."""
        return observe(self._objects.get(key, {}).values(), uid)

    def _is_gone(self, found: Object) -> bool:
        """Whether a watch has told of the object's end already: an answer and a list may be slower than the watch."""
        return _uid(found) in self._gone and version_of(found) <= self._gone[_uid(found)]


def model_key(found: Object) -> Key | None:
    """Which model an object tells of: itself, or the one that its label names."""
    metadata = found["metadata"]
    name = metadata["name"] if found["kind"] == KIND else (metadata.get("labels") or {}).get(LABEL_MODEL)
    return Key(metadata["namespace"], name) if name else None


def slim(found: Object) -> Object:
    """The object without the fields that nobody here reads, which are the larger half of most objects."""
    metadata = dict(found["metadata"])
    if found["kind"] != "Deployment":
        metadata.pop("managedFields", None)
    unread = UNREAD.get(found["kind"], frozenset())
    return {**{name: value for name, value in found.items() if name not in unread}, "metadata": metadata}


def version_of(found: Object) -> int:
    """resourceVersion as a number: Kubernetes lets clients compare them since 1.35, and they were numbers before."""
    text = str(found["metadata"].get("resourceVersion", "0"))
    return int(text) if text.isdigit() else 0


def _without_status(found: Object) -> Object:
    metadata = {name: value for name, value in found["metadata"].items() if name != "resourceVersion"}
    return {**found, "metadata": metadata, "status": None}


def _is_older(found: Object, known: Object | None) -> bool:
    return known is not None and _uid(known) == _uid(found) and version_of(found) < version_of(known)


def _place(found: Object) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def _uid(found: Object) -> str:
    return str(found["metadata"].get("uid", ""))
