"""The files of configMap, secret, downwardAPI and projected volumes.

Fetches what they name and returns file contents; `volumes` writes them. Tokens are asked for with TokenRequest and kept
until half of their life is over.
"""

import time
from typing import Any

from processcluster.api import Api, ApiError
from processcluster.kubelet.environment import PATHS, contents, field_value, resource_value
from processcluster.kubelet.waiting import NotReadyError

Files = dict[str, bytes]
TOKEN_LIFE_S = 3600


class Projection:
    """The file contents of one pod's volumes, fetched anew at every call."""

    def __init__(self, api: Api, pod: dict[str, Any], addresses: dict[str, str]) -> None:
        self._api = api
        self._pod = pod
        self._addresses = addresses
        self._namespace_path = f"/api/v1/namespaces/{pod['metadata']['namespace']}"
        self._tokens: dict[tuple[str, int], tuple[bytes, float]] = {}

    async def files(self, volume: dict[str, Any]) -> Files | None:
        """Relative path -> content, or None when the volume is of another kind. Raises NotReadyError."""
        if "configMap" in volume:
            return await self._entries("ConfigMap", volume["configMap"], volume["configMap"]["name"])
        if "secret" in volume:
            return await self._entries("Secret", volume["secret"], volume["secret"]["secretName"])
        if "downwardAPI" in volume:
            return self._downward(volume["downwardAPI"])
        if "projected" in volume:
            result: Files = {}
            for source in volume["projected"]["sources"]:
                result |= await self._source(source)
            return result
        return None

    async def _source(self, source: dict[str, Any]) -> Files:
        if "serviceAccountToken" in source:
            return {source["serviceAccountToken"]["path"]: await self._token(source["serviceAccountToken"])}
        if "downwardAPI" in source:
            return self._downward(source["downwardAPI"])
        for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
            if key in source:
                return await self._entries(kind, source[key], source[key]["name"])
        raise NotReadyError("ContainerCreating", f"projected source {', '.join(source)} is not known")

    async def _entries(self, kind: str, wanted: dict[str, Any], name: str) -> Files:
        found = await self._api.get_or_none(f"{self._namespace_path}/{PATHS[kind]}/{name}")
        if found is None and not wanted.get("optional"):
            raise NotReadyError("ContainerCreating", f'{kind.lower()} "{name}" not found')
        entries = contents(kind, found)
        if "items" not in wanted:
            return entries
        absent = [item["key"] for item in wanted["items"] if item["key"] not in entries]
        if absent and not wanted.get("optional"):
            raise NotReadyError("ContainerCreating", f'{kind.lower()} "{name}" has no key {", ".join(absent)}')
        return {item["path"]: entries[item["key"]] for item in wanted["items"] if item["key"] in entries}

    def _downward(self, wanted: dict[str, Any]) -> Files:
        return {item["path"]: self._downward_value(item).encode() for item in wanted.get("items", [])}

    def _downward_value(self, item: dict[str, Any]) -> str:
        if "fieldRef" in item:
            return field_value(self._pod, item["fieldRef"]["fieldPath"], self._addresses)
        reference = item["resourceFieldRef"]
        containers = {container["name"]: container for container in self._pod["spec"]["containers"]}
        return resource_value(containers[reference["containerName"]], reference)

    async def _token(self, wanted: dict[str, Any]) -> bytes:
        life_s = wanted.get("expirationSeconds", TOKEN_LIFE_S)
        key = (wanted.get("audience", ""), life_s)
        token, renew_at = self._tokens.get(key, (b"", 0.0))
        if time.monotonic() < renew_at:
            return token
        metadata = self._pod["metadata"]
        spec: dict[str, Any] = {
            "expirationSeconds": life_s,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        if key[0]:
            spec["audiences"] = [key[0]]
        account = self._pod["spec"].get("serviceAccountName", "default")
        try:
            answer = await self._api.call("POST", f"{self._namespace_path}/serviceaccounts/{account}/token", {"spec": spec})
        except ApiError as error:
            raise NotReadyError("ContainerCreating", f"no token for service account {account}: {error}") from error
        token = str(answer["status"]["token"]).encode()
        self._tokens[key] = (token, time.monotonic() + life_s / 2)
        return token
