"""The file that a download grows in: survives interruptions, hashes as it grows, becomes the real file by a rename."""

import errno
import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from paceline_runtime.fetch.errors import FolderError
from paceline_runtime.fetch.listing import Digest

_CHUNK_BYTES = 1 << 20


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class PartialFile:
    """A file open for appending; what an earlier run left is hashed once, then every chunk as it comes."""

    def __init__(self, path: Path, expected: Digest | None, size_bytes: int | None) -> None:
        self._expected, self._total_bytes = expected, size_bytes
        with local_errors(path):
            self._file = path.open("a+b")
        self._hash = self._new_hash()
        self.size_bytes = self._hash_existing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with local_errors(Path(self._file.name)):
            self._file.close()

    def append(self, chunk: bytes) -> None:
        with local_errors(Path(self._file.name)):
            self._file.write(chunk)
        self.size_bytes += len(chunk)
        if self._hash:
            self._hash.update(chunk)

    def restart(self) -> None:
        """Throw away what is here."""
        with local_errors(Path(self._file.name)):
            self._file.truncate(0)
        self._hash, self.size_bytes = self._new_hash(), 0

    def sync(self) -> None:
        """Write the file to the disk, so that a rename never uncovers a hole after a crash."""
        with local_errors(Path(self._file.name)):
            self._file.flush()
            os.fsync(self._file.fileno())

    def trust_size(self) -> None:
        """The announced digest turns out not to be one of the content."""
        self._expected = self._hash = None

    def matches(self) -> bool:
        """Whether the content has the expected digest; True where none is known."""
        return self._hash is None or self._expected is None or self._hash.hexdigest() == self._expected.hex

    def _new_hash(self) -> _Hash | None:
        if self._expected is None:
            return None
        if self._expected.algorithm == "git-sha1":
            return hashlib.sha1(b"blob %d\0" % (self._total_bytes or 0), usedforsecurity=False)
        return hashlib.new(self._expected.algorithm, usedforsecurity=self._expected.algorithm == "sha256")

    def _hash_existing(self) -> int:
        self._file.seek(0)
        num_bytes = 0
        while chunk := self._file.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            if self._hash:
                self._hash.update(chunk)
        return num_bytes


class local_errors:  # noqa: N801 - reads as the statement it is
    """Turns an OSError about `path` into a FolderError that says what to do."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FolderError(f"{self._path}: no space left; give the volume more, what has arrived is kept") from error
        raise FolderError(f"{self._path}: {error.strerror or error}") from error
