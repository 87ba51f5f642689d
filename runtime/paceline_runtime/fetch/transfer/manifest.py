"""`.paceline-fetch.json`: the fetch writes the manifest last, so its request says that the folder is whole, and for what.

While files are put in place the manifest names no request (`being_replaced`) and only tells which files are ours to remove.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline_runtime.fetch.errors import IntegrityError
from paceline_runtime.fetch.listing import Listing
from paceline_runtime.fetch.paths import safe_path
from paceline_runtime.fetch.transfer.partial import local_errors

MANIFEST_NAME = ".paceline-fetch.json"
BEING_REPLACED = ""
_VERSION = 1


@dataclass(frozen=True)
class FetchedFile:
    """One file in the folder. `identity` is the remote file's (an archive's, for what was unpacked from it)."""

    path: str
    size_bytes: int
    identity: str
    digest: str = ""

    def is_whole(self, folder: Path) -> bool:
        """Whether the file is there with its size. Content was verified when it came."""
        return _size_bytes(folder / self.path) == self.size_bytes


@dataclass(frozen=True)
class Manifest:
    """What was asked (`request`: a hash, since URIs may carry secrets), what it resolved to, what lies here."""

    request: str
    source: str
    revision: str
    files: tuple[FetchedFile, ...]

    def is_whole(self, folder: Path) -> bool:
        """Whether every file is there."""
        return all(file.is_whole(folder) for file in self.files)


def request_key(uri: str, revision: str | None, include: list[str], exclude: list[str]) -> str:
    """Names a request: the same key, the same files."""
    text = json.dumps([uri, revision, sorted(include), sorted(exclude)])
    return hashlib.sha256(text.encode()).hexdigest()


def being_replaced(old: Manifest | None, listing: Listing) -> Manifest:
    """What a folder may hold between two versions: complete for no request, and no file of it known to be of either."""
    paths = {file.path for file in old.files} if old else set()
    paths |= {file.path for file in listing.files if not file.is_archive}
    return Manifest(
        BEING_REPLACED, "a fetch that was interrupted", "", tuple(FetchedFile(path, 0, "") for path in sorted(paths))
    )


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None when there is none, or none that this version wrote."""
    try:
        data = json.loads((folder / MANIFEST_NAME).read_bytes())
        return _parse(data) if data["version"] == _VERSION else None
    except (OSError, ValueError, KeyError, TypeError, IntegrityError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Atomically: a reader sees all of it or nothing."""
    draft = folder / f"{MANIFEST_NAME}.new"
    with local_errors(draft):
        with draft.open("w") as file:
            json.dump({"version": _VERSION, **asdict(manifest)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(folder / MANIFEST_NAME)


def _parse(data: dict[str, Any]) -> Manifest:
    files = tuple(FetchedFile(**entry) for entry in data["files"])
    for file in files:
        safe_path(file.path)
    return Manifest(data["request"], data["source"], data["revision"], files)


def _size_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
