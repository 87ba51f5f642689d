"""Model hubs that speak the Hugging Face HTTP API: one call for commit, sizes and digests, one address per file.

Every file is verified: large ones by the SHA-256 of their LFS object, small ones by git's name of their blob.
"""

import json
import re
import urllib.parse
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from paceline_compat.places.uri import HubUri
from paceline_runtime.fetch.client import Client, place
from paceline_runtime.fetch.errors import RefusedError
from paceline_runtime.fetch.listing import Digest, Listing, RemoteFile
from paceline_runtime.fetch.paths import is_ours, safe_path
from paceline_runtime.fetch.sources.environment import address, credential
from paceline_runtime.fetch.sources.selection import gguf_model


@dataclass(frozen=True)
class BearerAuth(httpx.Auth):
    """Sends a token; httpx drops the token when a redirect leaves the host."""

    token: str = field(repr=False)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["authorization"] = f"Bearer {self.token}"
        yield request


def list_hub(uri: HubUri, client: Client, environment: Mapping[str, str]) -> Listing:
    """All files of the revision's commit. The commit is resolved once: a branch that moves meanwhile changes nothing."""
    endpoint = address(environment, "HF_ENDPOINT", "hf")
    token = credential(environment, "HF_TOKEN")
    auth = BearerAuth(token) if token else None
    revision = urllib.parse.quote(uri.revision_or_main, safe="")
    info = _info(f"{endpoint}/api/models/{uri.repo}/revision/{revision}?blobs=true", client, auth)
    base = f"{endpoint}/{uri.repo}/resolve/{info['sha']}"
    files = tuple(_remote_file(base, item) for item in info["siblings"] if _is_named(uri, item["rfilename"]))
    if not files:
        raise RefusedError(f"{place(endpoint)}/{uri.repo}: revision {uri.revision_or_main} holds no {uri.file or 'files'}")
    return Listing(info["sha"], tuple(map(_uppermost, files)) if uri.file else files, auth)


def _is_named(uri: HubUri, name: str) -> bool:
    return not is_ours(name) and (uri.file is None or gguf_model(name) == gguf_model(uri.file))


def _uppermost(file: RemoteFile) -> RemoteFile:
    """The file without its repository's folders: whoever names a file finds it in the folder that it was fetched to."""
    return replace(file, path=file.path.rpartition("/")[2])


def _info(url: str, client: Client, auth: BearerAuth | None) -> dict[str, Any]:
    try:
        body = client.get(url, auth).body
    except RefusedError as error:
        remedy = "set HF_TOKEN to a token that may read it" if auth is None else "HF_TOKEN may not read it, or has expired"
        raise RefusedError(f"{error} (when the repository is private or gated: {remedy})") from error
    try:
        info = json.loads(body)
        is_sound = bool(re.fullmatch(r"[0-9a-f]{40,64}", info["sha"])) and all(
            isinstance(item["rfilename"], str) for item in info["siblings"]
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{place(url)}: the answer is not a repository's description; is HF_ENDPOINT right?") from error
    if not is_sound:
        raise RefusedError(f"{place(url)}: the answer names no commit or files without names")
    return dict(info)


def _remote_file(base: str, item: dict[str, Any]) -> RemoteFile:
    path = safe_path(item["rfilename"])
    lfs, size, blob = item.get("lfs"), item.get("size"), item.get("blobId")
    digest = None
    if isinstance(lfs, dict) and re.fullmatch(r"[0-9a-f]{64}", str(lfs.get("sha256"))):
        digest, size = Digest("sha256", lfs["sha256"]), lfs.get("size", size)
    elif isinstance(size, int) and re.fullmatch(r"[0-9a-f]{40}", str(blob)):
        digest = Digest("git-sha1", str(blob))
    size_bytes = size if isinstance(size, int) and size >= 0 else None
    return RemoteFile(path, f"{base}/{urllib.parse.quote(path)}", size_bytes, digest)
