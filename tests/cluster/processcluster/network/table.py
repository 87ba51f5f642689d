"""Which backends stand behind which service port, and which addresses behind which name.

Pure: computed anew from Services and EndpointSlices as the API server shows them. TCP ports only.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from processcluster.layout import API_ADDRESS, CLUSTER_DOMAIN

SERVICE_LABEL = "kubernetes.io/service-name"


class Address(NamedTuple):
    ip: str
    port: int


def routes(services: Iterable[dict[str, Any]], slices: Iterable[dict[str, Any]]) -> dict[Address, list[Address]]:
    """Service address and port -> its ready backends, without ports that have none (those refuse connections)."""
    backends = _backends(slices)
    table: dict[Address, list[Address]] = {}
    for service in services:
        ip = service["spec"].get("clusterIP", "None")
        # The API server itself listens on the first address.
        if ip in ("", "None", API_ADDRESS):
            continue
        for port in service["spec"].get("ports", []):
            ready = backends.get((*_key(service), port.get("name", "")), [])
            if ready and port.get("protocol", "TCP") == "TCP":
                table[Address(ip, port["port"])] = sorted(ready)
    return table


def names(services: Iterable[dict[str, Any]], slices: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Full DNS name -> IPv4 addresses: the cluster address, or the ready pods of a headless service."""
    backends = _backends(slices)
    table: dict[str, list[str]] = {}
    for service in services:
        namespace, name = _key(service)
        ip = service["spec"].get("clusterIP", "None")
        pods = {address.ip for key, found in backends.items() if key[:2] == (namespace, name) for address in found}
        table[f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}"] = sorted(pods) if ip in ("", "None") else [ip]
    return table


def _key(service: dict[str, Any]) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]


def _backends(slices: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], list[Address]]:
    """(namespace, service, port name) -> ready addresses."""
    found: dict[tuple[str, str, str], list[Address]] = {}
    for item in slices:
        service = item["metadata"].get("labels", {}).get(SERVICE_LABEL)
        if service is None or item.get("addressType") != "IPv4":
            continue
        ready = [
            ip
            for endpoint in item.get("endpoints") or []
            if endpoint.get("conditions", {}).get("ready", True)
            for ip in endpoint["addresses"]
        ]
        for port in item.get("ports") or []:
            key = (item["metadata"]["namespace"], service, port.get("name") or "")
            found.setdefault(key, []).extend(Address(ip, port["port"]) for ip in ready)
    return found
