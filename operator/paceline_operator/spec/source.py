"""Where a checkpoint comes from: one URI, its parts, and the names that follow from it.

The builders, admission and the inspect Job use it. The module reads nothing.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

import msgspec

from paceline_compat.places.uri import ClaimUri, HubUri, S3Uri, Uri, UriError, WebUri, at_revision, parse_uri
from paceline_operator.errors import Problem
from paceline_operator.names import MOUNT_CLAIMS, MOUNT_WEIGHTS

SCHEMES = ("hf", "pvc", "oci", "s3", "https")
# Headers of these sources can be read in place, in ranges or on the mounted claim.
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
    def location(self) -> str:
        """The URI with its revision in it, for readers and fetchers: `hf://org/name@revision/file.gguf`."""
        return at_revision(self.uri, self.revision) if self.revision else self.uri

    @property
    def parsed(self) -> Uri:
        """The location taken apart; UriError for what `problems` names."""
        return parse_uri(self.location)

    @property
    def claim_name(self) -> str:
        """The PersistentVolumeClaim of a pvc:// source."""
        return self._on_claim.claim

    @property
    def digest(self) -> str:
        """A short name for what the source says; changes when uri or revision do."""
        return hashlib.sha256(self.location.encode()).hexdigest()[:12]

    @property
    def folder(self) -> str:
        """Where the checkpoint's files lie in a pod: on the mounted claim, or where they were fetched to."""
        if self.is_claim:
            return f"{MOUNT_CLAIMS}/{self.role}{self._on_claim.path}"
        return f"{MOUNT_WEIGHTS}/{self.digest}"

    @property
    def path(self) -> str:
        """What the runtime is told to load: the folder, or the GGUF file that the fetch puts into it."""
        uri = self.parsed
        file = uri.file_name if isinstance(uri, HubUri | S3Uri | WebUri) else None
        return f"{self.folder}/{file}" if file and file.endswith(".gguf") else self.folder

    def problems(self) -> list[Problem]:
        """What the URI alone shows to be wrong."""
        path, found = f"spec.{self.role}.uri", []
        if self.scheme not in SCHEMES:
            found.append(Problem(path, f"must start with one of {', '.join(f'{s}://' for s in SCHEMES)}"))
        if ".." in self.uri:
            found.append(Problem(path, "must not contain '..'"))
        if not found:
            try:
                parse_uri(self.location)
            except UriError as error:
                found.append(Problem(path, str(error)))
        return found

    @property
    def _on_claim(self) -> ClaimUri:
        uri = self.parsed
        assert isinstance(uri, ClaimUri), self.uri
        return uri


class Target(Source, frozen=True, kw_only=True, rename="camel"):
    """The model that is served."""

    role: ClassVar[str] = "target"


class Draft(Source, frozen=True, kw_only=True, rename="camel"):
    """The model that drafts."""

    role: ClassVar[str] = "draft"


def digest_of(*texts: str) -> str:
    """A short stable name for some texts together."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
