"""Where a checkpoint comes from: one URI, its parts, and the names that follow from it.

Used by the builders, by admission and by the inspect Job; reads nothing.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import msgspec

from paceline_operator.errors import Problem
from paceline_operator.names import MOUNT_CLAIMS, MOUNT_WEIGHTS

SCHEMES = ("hf", "pvc", "oci", "s3", "https")
# Headers of these can be read in place, by ranged reads or on the mounted claim.
INSPECTABLE = frozenset({"hf", "pvc", "https"})


class SecretRef(msgspec.Struct, frozen=True, kw_only=True):
    """A Secret of the same namespace. The operator passes the name on and never reads it."""

    name: str
    key: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One checkpoint's place."""

    uri: str
    revision: str | None = None
    secret_ref: SecretRef | None = None
    role: ClassVar[str] = ""

    @property
    def scheme(self) -> str:
        return self.uri.partition("://")[0]

    @property
    def is_claim(self) -> bool:
        return self.scheme == "pvc"

    @property
    def claim_name(self) -> str:
        """The PersistentVolumeClaim of a pvc:// source."""
        return urlsplit(self.uri).netloc

    @property
    def location(self) -> str:
        """The URI with its revision in it, slashes as %2F: `hf://org/name@revision/file.gguf`, for readers and fetchers."""
        if not self.revision:
            return self.uri
        repository = "/".join(self.uri.split("/")[:4])
        return f"{repository}@{self.revision.replace('/', '%2F')}{self.uri.removeprefix(repository)}"

    @property
    def digest(self) -> str:
        """A short name for what the source says; changes when uri or revision do."""
        return hashlib.sha256(self.location.encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """Where the checkpoint's files lie in a pod: on the mounted claim, or where they were fetched to."""
        if self.is_claim:
            return f"{MOUNT_CLAIMS}/{self.role}{urlsplit(self.uri).path.rstrip('/')}"
        return f"{MOUNT_WEIGHTS}/{self.digest}"

    @property
    def path(self) -> str:
        """What the runtime is told to load: the folder, or the GGUF file in it."""
        name = self.uri.partition("#")[0].rstrip("/").rpartition("/")[2]
        file = unquote(name) if self.scheme == "https" else name  # as the fetch names it on disk
        if self.scheme in ("hf", "s3", "https") and file.endswith(".gguf"):
            return f"{self.folder}/{file}"
        return self.folder

    def problems(self) -> list[Problem]:
        """What the URI alone shows to be wrong."""
        path, found = f"spec.{self.role}.uri", []
        if self.scheme not in SCHEMES:
            found.append(Problem(path, f"must start with one of {', '.join(f'{s}://' for s in SCHEMES)}"))
        if ".." in self.uri:
            found.append(Problem(path, "must not contain '..'"))
        return found


class Target(Source, frozen=True, kw_only=True, rename="camel"):
    """The model that is served."""

    role: ClassVar[str] = "target"


class Draft(Source, frozen=True, kw_only=True, rename="camel"):
    """The model that drafts."""

    role: ClassVar[str] = "draft"


def digest_of(*texts: str) -> str:
    """A short stable name for some texts together."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
