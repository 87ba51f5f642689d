"""A provisioner for the storage class `folder`: a claim becomes a folder of this machine.

Several kubelets may run it side by side: a volume's name comes from its claim, so the second creation conflicts and is
dropped. Sizes are not enforced.
"""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import aiohttp

from processcluster.api import Api, ApiError
from processcluster.layout import STORAGE_CLASS

PROVISIONER = f"processcluster/{STORAGE_CLASS}"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
VOLUMES = "/api/v1/persistentvolumes"
log = logging.getLogger(__name__)


def volume_for(claim: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The persistent volume that answers a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    reference = {key: metadata[key] for key in ("namespace", "name", "uid")}
    return {
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "hostPath": {"path": str(folder)},
        },
    }


async def provision(api: Api, claims: Path) -> None:
    """Makes folders and volumes for claims of our class, without end."""
    async for event in api.follow("/api/v1/persistentvolumeclaims"):
        for claim in event.objects:
            pending = claim["status"].get("phase") == "Pending" and not claim["spec"].get("volumeName")
            if pending and claim["spec"].get("storageClassName") == STORAGE_CLASS and event.kind != "DELETED":
                folder = claims / f"{claim['metadata']['namespace']}_{claim['metadata']['name']}"
                folder = folder.with_name(f"{folder.name}_{claim['metadata']['uid'][:8]}")
                folder.mkdir(parents=True, exist_ok=True)
                await _attempt(api, "POST", VOLUMES, volume_for(claim, folder))


async def reclaim(api: Api) -> None:
    """Deletes our volumes and their folders once their claim is gone, without end."""
    async for event in api.follow(VOLUMES):
        for volume in event.objects:
            is_ours = volume["metadata"].get("annotations", {}).get(PROVISIONED_BY) == PROVISIONER
            if is_ours and volume["status"].get("phase") == "Released" and event.kind != "DELETED":
                await asyncio.to_thread(shutil.rmtree, volume["spec"]["hostPath"]["path"], ignore_errors=True)
                await _attempt(api, "DELETE", f"{VOLUMES}/{volume['metadata']['name']}")


async def _attempt(api: Api, method: str, path: str, body: object = None) -> None:
    """One call; a failure is left to the next listing, which shows the object again."""
    try:
        await api.call(method, path, body)
    except (ApiError, aiohttp.ClientError, TimeoutError) as error:
        log.warning("%s %s: %r", method, path, error)
