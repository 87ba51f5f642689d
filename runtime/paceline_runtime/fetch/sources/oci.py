"""OCI registries: an artifact's titled layers are files, its tar layers are archives; every byte has a digest.

Formats: the OCI image specification (manifest, index, annotations), ORAS for titles, CNCF ModelPack for its file path
annotation. The distribution API is asked for manifests and blobs only.
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from typing import Any

from paceline_compat.places.uri import OciUri
from paceline_runtime.fetch.client import Client, place
from paceline_runtime.fetch.errors import IntegrityError, RefusedError
from paceline_runtime.fetch.listing import Digest, Listing, RemoteFile
from paceline_runtime.fetch.paths import safe_path
from paceline_runtime.fetch.sources.registry_auth import RegistryAuth, docker_credentials

_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_ACCEPT = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
_TITLES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_UNPACK = "io.deis.oras.content.unpack"
_TAR = re.compile(r"[./]tar(?:[.+]gzip)?$")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def list_oci(uri: OciUri, client: Client, environment: Mapping[str, str], *, plain_http: bool = False) -> Listing:
    """The layers of the manifest that the reference names, through an index where it names one."""
    base = f"{'http' if plain_http else 'https'}://{uri.registry}/v2/{uri.repository}"
    auth = RegistryAuth(docker_credentials(uri.registry, environment))
    manifest, digest = _manifest(base, uri.reference, client, auth)
    if "manifests" in manifest:
        manifest, digest = _manifest(base, _choose(manifest["manifests"], base), client, auth)
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not layers:
        raise RefusedError(f"{place(base)}: the manifest of {uri.reference} has no layers")
    # Builders repeat empty layers; what a layer covers the second time, it covers all the more.
    files = reversed(dict.fromkeys(_remote_file(base, layer) for layer in reversed(layers)))
    return Listing(digest, tuple(files), auth)


def _manifest(base: str, reference: str, client: Client, auth: RegistryAuth) -> tuple[dict[str, Any], str]:
    reply = client.get(f"{base}/manifests/{reference}", auth, _ACCEPT)
    digest = f"sha256:{hashlib.sha256(reply.body).hexdigest()}"
    announced = reference if reference.startswith("sha256:") else reply.headers.get("docker-content-digest", digest)
    if announced != digest:
        raise IntegrityError(f"{place(base)}: the manifest of {reference} has digest {digest}, not {announced}")
    try:
        manifest = json.loads(reply.body)
    except ValueError as error:
        raise RefusedError(f"{place(base)}: the manifest of {reference} is not JSON") from error
    if not isinstance(manifest, dict):
        raise RefusedError(f"{place(base)}: the manifest of {reference} is not an object")
    return manifest, digest


def _choose(entries: Any, base: str) -> str:
    """The manifest for this machine; one without a platform serves all machines. Attestations have an unknown platform."""
    wanted = ("linux", _ARCHITECTURES.get(platform.machine(), platform.machine()))
    for entry in entries if isinstance(entries, list) else []:
        where = entry.get("platform") if isinstance(entry, dict) else ()
        if where is None or (isinstance(where, dict) and (where.get("os"), where.get("architecture")) == wanted):
            return _digest(entry)
    raise RefusedError(f"{place(base)}: the index has no manifest for {'/'.join(wanted)}")


def _remote_file(base: str, layer: Any) -> RemoteFile:
    digest = _digest(layer)
    annotations = layer.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    title = next((annotations[name] for name in _TITLES if isinstance(annotations.get(name), str)), None)
    media_type, size = str(layer.get("mediaType", "")), layer.get("size")
    if not isinstance(size, int) or size < 0:
        raise RefusedError(f"layer {digest}: its size is {size!r}")
    is_tar = _TAR.search(media_type) is not None
    is_packed = media_type.startswith("application/vnd.cncf") or annotations.get(_UNPACK) == "true"
    if media_type.endswith("tar+zstd") and (is_packed or title is None):
        raise RefusedError(f"layer {digest} is packed with zstd ({media_type}); publish it as tar or tar+gzip")
    # Folders that ORAS packs may have any media type.
    is_archive = annotations.get(_UNPACK) == "true" or (is_tar and (is_packed or title is None))
    if title is None and not is_tar:
        raise RefusedError(f"layer {digest} has neither a title annotation nor a tar media type ({media_type or 'none'})")
    hexadecimal = digest.removeprefix("sha256:")
    path = f"layer-{hexadecimal[:12]}.tar" if is_archive else safe_path(str(title))
    return RemoteFile(path, f"{base}/blobs/{digest}", size, Digest("sha256", hexadecimal), is_archive=is_archive)


def _digest(descriptor: Any) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest)):
        raise RefusedError(f"a descriptor has the digest {digest!r}; only sha256 is understood")
    return str(digest)
