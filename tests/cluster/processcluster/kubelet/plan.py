"""From a pod's container to a `Bubble`: image, user, arguments, mounts.

Pure; raises NotReadyError with the reason a kubelet would show. Called by the container runner at each start, so changes of
the image table and of sources take effect at restarts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processcluster.images import Image
from processcluster.kubelet.bubble import Bind, Bubble
from processcluster.kubelet.environment import expand
from processcluster.kubelet.waiting import NotReadyError

DEFAULT_TERMINATION_PATH = "/dev/termination-log"


def find_image(images: Mapping[str, Image], name: str) -> Image:
    """The image of that name. Raises NotReadyError as a failed pull does."""
    if name not in images:
        raise NotReadyError("ErrImagePull", f"no image {name!r}; there are {', '.join(sorted(images))}")
    return images[name]


def identity(pod_spec: dict[str, Any], container: dict[str, Any], image: Image) -> tuple[int, int]:
    """User and group id. Raises NotReadyError when the pod must not be root and would be."""
    security = pod_spec.get("securityContext", {}) | container.get("securityContext", {})
    user = security.get("runAsUser", image.user)
    if security.get("runAsNonRoot") and user == 0:
        raise NotReadyError("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
    return user, security.get("runAsGroup", user)


def arguments(container: dict[str, Any], image: Image, env: Mapping[str, str]) -> list[str]:
    """argv: `command` replaces the image's entry point, `args` follow, $(VAR) is expanded."""
    given = [expand(text, env) for text in (*container.get("command", []), *container.get("args", []))]
    argv = given if container.get("command") else [*image.entrypoint, *given]
    if not argv:
        raise NotReadyError("CreateContainerError", "no command specified")
    return argv


def mounts(container: dict[str, Any], paths: Mapping[str, Path], read_only: set[str], env: Mapping[str, str]) -> list[Bind]:
    """volumeMounts as binds. Raises NotReadyError when a subPath leads out of its volume."""
    return [_mount(mount, paths[mount["name"]], read_only, env) for mount in container.get("volumeMounts", [])]


def _mount(mount: dict[str, Any], volume: Path, read_only: set[str], env: Mapping[str, str]) -> Bind:
    below = mount.get("subPath") or expand(mount.get("subPathExpr", ""), env)
    source = (volume / below).resolve()
    if not source.is_relative_to(volume.resolve()):
        raise NotReadyError("CreateContainerConfigError", f"subPath {below!r} leads out of volume {mount['name']}")
    is_read_only = bool(mount.get("readOnly")) or mount["name"] in read_only
    if not is_read_only and not source.exists():
        source.mkdir(parents=True)
    return Bind(str(source), mount["mountPath"], is_read_only)


def bubble(
    pod: dict[str, Any],
    container: dict[str, Any],
    image: Image,
    env: Mapping[str, str],
    volume_binds: list[Bind],
    etc_files: Mapping[str, Path],
    termination_file: Path,
) -> Bubble:
    """The whole container; `termination_file` takes what the program writes to its terminationMessagePath."""
    user, group = identity(pod["spec"], container, image)
    termination_path = container.get("terminationMessagePath", DEFAULT_TERMINATION_PATH)
    return Bubble(
        argv=arguments(container, image, env),
        env=env,
        image_binds=[Bind(source, target, True) for source, target in image.binds.items()],
        etc_files=etc_files,
        volume_binds=volume_binds,
        termination=Bind(str(termination_file), termination_path, False),
        hostname=pod["metadata"]["name"][:63],
        user=user,
        group=group,
        working_dir=container.get("workingDir", image.working_dir),
        read_only_root=bool(container.get("securityContext", {}).get("readOnlyRootFilesystem")),
    )
