"""A container's environment: envFrom, env with valueFrom, and $(VAR) expansion.

`environment` is pure over what `load_sources` fetched. Knows no processes.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from processcluster.api import Api
from processcluster.kubelet.quantity import divided
from processcluster.kubelet.waiting import NotReadyError
from processcluster.layout import API_ADDRESS, API_PORT

PATHS = {"ConfigMap": "configmaps", "Secret": "secrets"}
# The API server names what a container may use when it has no limit: all of the node.
NODE_LIMITS = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti"}
# $$(VAR) stays as $(VAR).
REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")


class Source(NamedTuple):
    kind: str
    name: str


Loaded = Mapping[Source, dict[str, Any] | None]


def sources(container: dict[str, Any]) -> set[Source]:
    """The config maps and secrets that a container's environment names."""
    found = set()
    for entry in container.get("envFrom", []):
        found |= {Source(kind, entry[key]["name"]) for key, kind in _FROM.items() if key in entry}
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {})
        found |= {Source(kind, reference[key]["name"]) for key, kind in _KEY.items() if key in reference}
    return found


async def load_sources(api: Api, namespace: str, wanted: set[Source]) -> dict[Source, dict[str, Any] | None]:
    """The objects, None for those that do not exist."""
    path = f"/api/v1/namespaces/{namespace}"
    return {source: await api.get_or_none(f"{path}/{PATHS[source.kind]}/{source.name}") for source in wanted}


def environment(
    pod: dict[str, Any], container: dict[str, Any], loaded: Loaded, base: Mapping[str, str], addresses: dict[str, str]
) -> dict[str, str]:
    """All variables, later ones winning: image, cluster, envFrom, env.

    `addresses` has podIP and hostIP. Raises NotReadyError when a required map, secret or key is absent.
    """
    result = dict(base) | {
        "HOSTNAME": pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": API_ADDRESS,
        "KUBERNETES_SERVICE_PORT": str(API_PORT),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(API_PORT),
    }
    for entry in container.get("envFrom", []):
        for name, value in _whole_source(entry, loaded):
            result[entry.get("prefix", "") + name] = value
    for variable in container.get("env", []):
        found: str | None = expand(variable.get("value", ""), result)
        if "valueFrom" in variable:
            found = _referenced(pod, container, variable["valueFrom"], loaded, addresses)
        if found is not None:
            result[variable["name"]] = found
    return result


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces $(NAME); unknown names stay as they are."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return REFERENCE.sub(replace, text)


def field_value(pod: dict[str, Any], path: str, addresses: Mapping[str, str]) -> str:
    """What a fieldRef shows; `addresses` has podIP and hostIP. Raises NotReadyError for paths this kubelet lacks."""
    metadata, spec = pod["metadata"], pod["spec"]
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if keyed:
        return str(metadata.get(keyed[1], {}).get(keyed[2], ""))
    whole = re.fullmatch(r"metadata\.(labels|annotations)", path)
    if whole:
        return "\n".join(f'{key}="{value}"' for key, value in sorted(metadata.get(whole[1], {}).items()))
    simple: dict[str, str] = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": addresses["podIP"],
        "status.podIPs": addresses["podIP"],
        "status.hostIP": addresses["hostIP"],
        "status.hostIPs": addresses["hostIP"],
    }
    if path not in simple:
        raise NotReadyError("CreateContainerConfigError", f"fieldPath {path} is not known; known: {', '.join(simple)}")
    return simple[path]


def resource_value(container: dict[str, Any], reference: dict[str, Any]) -> str:
    """What a resourceFieldRef shows: a request or limit (the node's whole when none is set) over the divisor."""
    group, _, name = reference["resource"].partition(".")
    resources = container.get("resources", {})
    found = resources.get(group, {}).get(name) or resources.get("limits", {}).get(name) or NODE_LIMITS.get(name, "0")
    return divided(str(found), str(reference.get("divisor", "1")))


_FROM = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
_KEY = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}


def _whole_source(entry: dict[str, Any], loaded: Loaded) -> Iterator[tuple[str, str]]:
    for key, kind in _FROM.items():
        if key not in entry:
            continue
        found = loaded[Source(kind, entry[key]["name"])]
        if found is None and not entry[key].get("optional"):
            raise NotReadyError("CreateContainerConfigError", f'{kind.lower()} "{entry[key]["name"]}" not found')
        yield from _texts(kind, found).items()


def _referenced(
    pod: dict[str, Any],
    container: dict[str, Any],
    reference: dict[str, Any],
    loaded: Loaded,
    addresses: dict[str, str],
) -> str | None:
    if "fieldRef" in reference:
        return field_value(pod, reference["fieldRef"]["fieldPath"], addresses)
    if "resourceFieldRef" in reference:
        return resource_value(container, reference["resourceFieldRef"])
    key, kind = next((key, kind) for key, kind in _KEY.items() if key in reference)
    wanted = reference[key]
    value = _texts(kind, loaded[Source(kind, wanted["name"])]).get(wanted["key"])
    if value is None and not wanted.get("optional"):
        text = f'no key {wanted["key"]} in {kind.lower()} "{wanted["name"]}"'
        raise NotReadyError("CreateContainerConfigError", text)
    return value


def _texts(kind: str, found: dict[str, Any] | None) -> dict[str, str]:
    return {name: data.decode() for name, data in contents(kind, found).items()}


def contents(kind: str, found: dict[str, Any] | None) -> dict[str, bytes]:
    """The entries of a ConfigMap or Secret as bytes; none for None."""
    if found is None:
        return {}
    data, binary = found.get("data") or {}, found.get("binaryData") or {}
    if kind == "Secret":
        return {name: base64.b64decode(value) for name, value in data.items()}
    plain = {name: value.encode() for name, value in data.items()}
    return plain | {name: base64.b64decode(value) for name, value in binary.items()}
