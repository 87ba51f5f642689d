"""A pod's volumes as folders of this machine: made before the first container, refreshed while it runs, removed after.

Folders are bound whole into containers and files replaced inside them, or an update would never show. Claims resolve
to the folder behind their volume. Called by the pod worker.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from processcluster.api import Api
from processcluster.kubelet.projection import Files, Projection
from processcluster.kubelet.quantity import parse_quantity
from processcluster.kubelet.waiting import NotReadyError


class Volumes:
    """The volumes of one pod below `folder`; `paths` has those that are ready, by name."""

    def __init__(self, api: Api, pod: dict[str, Any], folder: Path, addresses: dict[str, str]) -> None:
        self._api = api
        self._namespace = pod["metadata"]["namespace"]
        self._volumes = pod["spec"].get("volumes", [])
        self._folder = folder
        self._projection = Projection(api, pod, addresses)
        self._tmpfs: list[Path] = []
        self.paths: dict[str, Path] = {}
        self.read_only: set[str] = set()

    @property
    def refreshable(self) -> bool:
        """Whether the API server may change what a file shows."""
        return any({"configMap", "secret", "projected"} & set(volume) for volume in self._volumes)

    async def prepare(self) -> None:
        """Makes all that are not there yet. Raises NotReadyError for the first that cannot be made."""
        for volume in self._volumes:
            if volume["name"] not in self.paths:
                self.paths[volume["name"]] = await self._make(volume)

    async def refresh(self) -> None:
        """Writes files whose source has changed. Raises NotReadyError when a source is gone (the files stay)."""
        for volume in self._volumes:
            files = await self._projection.files(volume)
            if files is not None:
                write_files(self.paths[volume["name"]], files)

    async def remove(self) -> None:
        """Unmounts and deletes; claims stay."""
        for path in self._tmpfs:
            await _command("umount", str(path))
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _make(self, volume: dict[str, Any]) -> Path:
        if "persistentVolumeClaim" in volume:
            return await self._claim(volume["name"], volume["persistentVolumeClaim"])
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        path = self._folder / str(volume["name"])
        path.mkdir(parents=True, exist_ok=True)
        files = await self._projection.files(volume)
        if files is not None:
            write_files(path, files)
            self.read_only.add(volume["name"])
        elif volume["emptyDir"].get("medium") == "Memory":
            await self._mount_tmpfs(path, volume["emptyDir"].get("sizeLimit"))
        return path

    async def _mount_tmpfs(self, path: Path, size: str | None) -> None:
        options = [] if size is None else ["-o", f"size={int(parse_quantity(size))}"]
        await _command("mount", "-t", "tmpfs", *options, "tmpfs", str(path))
        self._tmpfs.append(path)

    async def _claim(self, volume_name: str, wanted: dict[str, Any]) -> Path:
        name = wanted["claimName"]
        claim = await self._api.get_or_none(f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{name}")
        if claim is None or claim["status"].get("phase") != "Bound":
            raise NotReadyError("ContainerCreating", f'persistentvolumeclaim "{name}" is not bound')
        volume = await self._api.call("GET", f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        source = volume["spec"].get("hostPath") or volume["spec"].get("local")
        if source is None:
            raise NotReadyError("ContainerCreating", f'persistentvolume of "{name}" is neither hostPath nor local')
        if wanted.get("readOnly"):
            self.read_only.add(volume_name)
        return _host_path(source)


def _host_path(source: dict[str, Any]) -> Path:
    path = Path(source["path"])
    if source.get("type") == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        raise NotReadyError("ContainerCreating", f"{path} does not exist on the node")
    return path


def write_files(folder: Path, files: Files) -> None:
    """Makes the folder hold exactly these files, each replaced in one step and only when it differs."""
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for name in present - files.keys():
        (folder / name).unlink()
    for name, content in files.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(content)
        fresh.replace(path)


async def _command(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise NotReadyError("ContainerCreating", f"{' '.join(argv)}: {errors.decode().strip()}")
