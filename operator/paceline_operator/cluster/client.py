"""The only module that talks to the API server (kopf's watches aside). Server-side apply under one field manager.

`reconcile`, `resync` and `leadership` call it. The module knows paths and errors, and nothing of what the objects mean. Paths
are made here rather than discovered: the kinds are known, and discovery would ask for the whole API at every start.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Self

import aiohttp
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from paceline_operator.cluster.kinds import Kind
from paceline_operator.errors import ApiError, GoneError
from paceline_operator.names import FIELD_MANAGER

Object = dict[str, Any]
REQUEST_TIMEOUT_S = 30.0
PAGE = 500
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Cluster:
    """One connection to the API server. `on_call(verb)` hears of every request."""

    def __init__(self, client: Any, on_call: Callable[[str], None] = lambda verb: None) -> None:
        self._client = client
        self._dynamic = DynamicClient(client)
        self._on_call = on_call

    @classmethod
    async def connect(cls, on_call: Callable[[str], None]) -> Self:
        """Connect by the pod's service account inside a pod, and by the current kubeconfig elsewhere."""
        configuration = kubernetes_client.Configuration()
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes_config.load_incluster_config(configuration)
        else:
            await kubernetes_config.load_kube_config(client_configuration=configuration)
        return cls(kubernetes_client.ApiClient(configuration), on_call)

    async def close(self) -> None:
        await self._client.close()

    async def apply(self, document: Object, kind: Kind, subresource: str = "") -> Object:
        """Server-side apply; returns the object as it is now.

        A document that names a uid is about the object with that uid, and wins its fields. A document without a uid may only
        make an object: where an object of somebody else took the name meanwhile, the fields of that object conflict.
        """
        metadata = document["metadata"]
        path = path_of(kind, metadata.get("namespace"), metadata["name"], subresource)
        options = {"content_type": APPLY, "field_manager": FIELD_MANAGER, "force_conflicts": "uid" in metadata}
        return await self._request("patch", path, body=document, **options)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object; GoneError when there is none."""
        return await self._request("get", path_of(kind, namespace, name))

    async def create(self, document: Object, kind: Kind) -> Object:
        """Make an object that is not applied: an Event, a peering."""
        return await self._request("post", path_of(kind, document["metadata"].get("namespace")), body=document)

    async def merge(self, change: Object, kind: Kind, namespace: str | None, name: str) -> Object:
        """Change some fields of an object that is not applied; GoneError when there is none."""
        return await self._request("patch", path_of(kind, namespace, name), body=change, content_type=MERGE)

    async def delete(self, found: Object, kind: Kind) -> None:
        """Delete exactly this object, and its dependents in the background. An object that is gone already is fine."""
        metadata = found["metadata"]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": metadata["uid"]}}
        try:
            await self._request("delete", path_of(kind, metadata["namespace"], metadata["name"]), body=body)
        except GoneError:
            return

    async def list(
        self, kind: Kind, namespace: str | None, label_selector: str | None = None, field_selector: str | None = None
    ) -> list[Object]:
        """All objects of a kind, in pages; items get the kind and version that lists leave out."""
        found: list[Object] = []
        token: str | None = None
        while token is None or token:
            selectors = {"label_selector": label_selector, "field_selector": field_selector}
            options: dict[str, Any] = {**selectors, "limit": PAGE, "_continue": token}
            page = await self._request("get", path_of(kind, namespace), **options)
            found += page["items"]
            token = page["metadata"].get("continue", "")
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **one} for one in found]

    async def knows(self, kind: Kind) -> bool:
        """Whether the cluster has a kind."""
        try:
            group = await self._request("get", f"/apis/{kind.api_version}")
        except GoneError:
            return False
        return any(one["name"] == kind.plural for one in group["resources"])

    async def _request(self, verb: str, path: str, **options: Any) -> Object:
        self._on_call(verb)
        try:
            response = await self._dynamic.request(verb, path, serialize=False, _request_timeout=REQUEST_TIMEOUT_S, **options)
            answer: Object = await response.json()
            return answer
        except ApiException as error:
            raise _error(error) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server could not be reached: {error or type(error).__name__}") from error


def path_of(kind: Kind, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
    """The URL path of a kind's collection, or of one object of it."""
    prefix = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    parts = [prefix, f"namespaces/{namespace}" if namespace else "", kind.plural, name or "", subresource]
    return "/".join(part for part in parts if part)


def _error(error: ApiException) -> ApiError:
    message = str(error.reason or "")
    with contextlib.suppress(TypeError, ValueError, KeyError):
        message = json.loads(error.body)["message"]
    if error.status == 404:
        return GoneError(404, message)
    retry_after = (error.headers or {}).get("Retry-After", "")
    return ApiError(error.status, message, float(retry_after) if retry_after.isdigit() else None)
