"""Which parts of a pod this kubelet cannot honour.

Pure; asked once before a pod starts. Each answer names the field: such a pod fails with the list as its message. A
security context that asks for less than containers get here anyway (no capabilities, no new privileges) needs nothing.
"""

from collections.abc import Iterator
from typing import Any

VOLUMES = {"name", "emptyDir", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim", "hostPath"}
POD_FIELDS = (
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "ephemeralContainers",
    "hostAliases",
    "dnsConfig",
    "activeDeadlineSeconds",
    "resourceClaims",
)
CONTAINER_FIELDS = ("volumeDevices", "stdin", "tty", "restartPolicy")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PROBE_ACTIONS = {"exec", "httpGet", "tcpSocket"}
PRE_STOP_ACTIONS = {"exec", "httpGet", "sleep"}


def unsupported_fields(spec: dict[str, Any]) -> list[str]:
    """Paths below `spec` that would be ignored; empty when the pod can run as it says."""
    found = [name for name in POD_FIELDS if spec.get(name)]
    found += [f"volumes[{volume['name']}]" for volume in spec.get("volumes", []) if set(volume) - VOLUMES]
    for key in ("initContainers", "containers"):
        for container in spec.get(key, []):
            found += [f"{key}[{container['name']}].{field}" for field in _container_fields(container)]
    return found


def _container_fields(container: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in CONTAINER_FIELDS if container.get(name))
    security = container.get("securityContext", {})
    if security.get("privileged"):
        yield "securityContext.privileged"
    if security.get("capabilities", {}).get("add"):
        yield "securityContext.capabilities.add"
    for name in PROBES:
        if name in container and not PROBE_ACTIONS & set(container[name]):
            yield name
    lifecycle = container.get("lifecycle", {})
    yield from (f"lifecycle.{name}" for name in lifecycle if name != "preStop")
    if "preStop" in lifecycle and not PRE_STOP_ACTIONS & set(lifecycle["preStop"]):
        yield "lifecycle.preStop"
