"""What a source says it has: the value that every source module makes and the transfer consumes."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import httpx

Algorithm = Literal["sha256", "git-sha1", "md5"]


@dataclass(frozen=True)
class Digest:
    """`git-sha1` is git's name of a blob: SHA-1 over `blob SIZE\\0` and the content."""

    algorithm: Algorithm
    hex: str


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch. `path` is relative and already checked; `etag` is a strong validator of `url`."""

    path: str
    url: str = field(repr=False)
    size_bytes: int | None = None
    digest: Digest | None = None
    etag: str | None = None
    is_archive: bool = False

    @property
    def identity(self) -> str:
        """Names this version of the file: a partial download is only continued under the same identity."""
        version = (self.digest.hex if self.digest else "", self.etag or "", str(self.size_bytes))
        return hashlib.sha256("\0".join((self.path, self.url, *version)).encode()).hexdigest()[:12]

    @property
    def can_resume(self) -> bool:
        """Without a validator, the rest of another version could be glued to what is here."""
        return self.digest is not None or self.etag is not None


@dataclass(frozen=True)
class Listing:
    """The files of one request. `revision` is the commit or digest that the files belong to, empty where there is none."""

    revision: str
    files: tuple[RemoteFile, ...]
    auth: httpx.Auth | None = field(default=None, repr=False)
