"""kmock's Kubernetes emulator with what an applying operator needs: upserts, versions, failures and watches that end.

kmock answers a patch of an absent object with 404; a server-side apply creates it. Its watches lose what happens between
their list of objects and their first wait, which a busy machine makes long; these do not. Used by tests/operator only.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp.web
from kmock import KubernetesEmulator, ResourceInfo, action

from paceline_operator.cluster.kinds import BY_NAME, EVENT, Kind
from paceline_operator.cluster.leadership import CLUSTER_PEERING, NAMESPACED_PEERING

NAMESPACE = Kind("v1", "Namespace", "namespaces")
DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
CLUSTER_WIDE = frozenset({CLUSTER_PEERING, NAMESPACE, DEFINITION})
APPLY = "application/apply-patch+yaml"


class ApplyEmulator(KubernetesEmulator):
    """`failures` are answered instead of the official client's next writes; `num_watches` were opened so far, by plural."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.failures: list[int] = []
        self.num_watches: Counter[str] = Counter()
        self._open_watches: set[asyncio.Event] = set()
        self.writes: list[tuple[str, str]] = []
        self._versions = itertools.count(1)

    def declare(self, *absent: str) -> None:
        """Make every kind known that the operator uses, except those whose name is given."""
        # kopf waits for the last two without a word, even where it may not list them.
        for kind in (*BY_NAME.values(), EVENT, CLUSTER_PEERING, NAMESPACED_PEERING, NAMESPACE, DEFINITION):
            if kind.kind not in absent:
                self.resources[f"{kind.api_version}/{kind.plural}"] = _info(kind)

    async def _handle(self, request: Any) -> aiohttp.web.StreamResponse:
        is_write = request.resource is not None and request.action in (action.CREATE, action.UPDATE, action.DELETE)
        if is_write and request.resource.group != "kopf.dev":
            self.writes.append((str(request.method).rpartition(".")[2], request.resource.plural))
            if self.failures and request.headers.get("User-Agent", "").startswith("OpenAPI-Generator"):
                headers = {"Retry-After": "1"} if self.failures[0] == 429 else {}
                status = self.failures.pop(0)
                return aiohttp.web.json_response({"kind": "Status", "message": "injected"}, status=status, headers=headers)
        if is_write and isinstance(request.data, dict):
            self._prepare(request)
        return await super()._handle(request)

    def _prepare(self, request: Any) -> None:
        """Give what is written a uid and a version, and make room for what is applied and not there."""
        key = (request.resource, request.namespace, request.name)
        metadata = request.data.setdefault("metadata", {})
        metadata["resourceVersion"] = str(next(self._versions))
        # The view has no `get`.
        known = self._objects[key] if key in self._objects else None  # noqa: SIM401
        if request.action == action.CREATE and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + metadata["resourceVersion"]
        if known is None or known.deleted:
            metadata.setdefault("uid", f"uid-{metadata['resourceVersion']}")
            if request.action == action.UPDATE and request.headers.get("Content-Type") == APPLY:
                self._objects[key] = dict(request.data)

    def close_watches(self) -> None:
        """End all watches that are open, as API servers do every few minutes."""
        for closing in self._open_watches:
            closing.set()

    async def _serve_watch(self, request: Any) -> AsyncIterator[Any]:
        self.num_watches[request.resource.plural] += 1
        closing = asyncio.Event()
        self._open_watches.add(closing)
        try:
            async for event in _until(closing, self._events(request)):
                yield event
        finally:
            self._open_watches.remove(closing)

    async def _events(self, request: Any) -> AsyncIterator[Any]:
        """Everything that there is, then everything that happens."""
        bus = self._buses[request.resource]
        mark = await bus.mark()
        try:
            yield b""  # the headers go out even if nothing happens
            for (resource, namespace, _), found in list(self.objects.items()):
                if resource == request.resource and request.namespace in (None, namespace) and not found.deleted:
                    yield {"type": "ADDED", "object": found.raw}
            async for event in bus.stream(since=mark):
                if request.namespace in (None, event["object"]["metadata"].get("namespace")):
                    yield event
        finally:
            await bus.unmark(mark)


async def _until(closing: asyncio.Event, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The stream's items until the event is set."""
    closed, step = asyncio.create_task(closing.wait()), None
    try:
        while not closed.done():
            step = asyncio.ensure_future(anext(stream))
            await asyncio.wait({step, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                return
            yield step.result()
    finally:
        closed.cancel()
        if step:
            step.cancel()


def _info(kind: Kind) -> ResourceInfo:
    verbs = {"get", "list", "watch", "create", "patch", "delete"}
    is_namespaced = kind not in CLUSTER_WIDE
    return ResourceInfo(kind=kind.kind, namespaced=is_namespaced, verbs=verbs, subresources={"status"})
