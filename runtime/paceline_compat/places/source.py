"""Ranged reads of checkpoint files, local here and remote in `http_source`. Sources know bytes and names, no format.

Readers ask for exactly the header bytes they need, so the same code inspects a 200 GB folder on disk and a hub
repository from a webhook with a budget of a few seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from paceline_compat.errors import MissingFileError, SourceError


class Source(Protocol):
    """One file, read by range."""

    @property
    def name(self) -> str:
        """How messages call the file."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, or SourceError: never fewer."""
        ...


class Folder(Protocol):
    """The files of one checkpoint, by name."""

    @property
    def name(self) -> str: ...

    def open(self, name: str) -> Source:
        """The named file; MissingFileError when it is not there, SourceError when the place cannot be read."""
        ...


def find(folder: Folder, name: str) -> Source | None:
    """The named file, or None where the folder does not have it; other failures still raise."""
    try:
        return folder.open(name)
    except MissingFileError:
        return None


def read_all(source: Source, limit_bytes: int) -> bytes:
    """A whole small file; SourceError when it is larger than `limit_bytes`."""
    if source.size_bytes > limit_bytes:
        raise SourceError(source.name, f"holds {source.size_bytes} bytes where at most {limit_bytes} are expected")
    return source.read(0, source.size_bytes)


class BytesSource:
    """A file held in memory, for tests and for small remote files."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self._data = name, data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        check_range(self, offset, length)
        return self._data[offset : offset + length]


class LocalSource:
    """A file on disk. Each read opens it anew: headers are a handful of reads, and nothing has to be closed."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        try:
            if not path.is_file():
                raise MissingFileError(str(path), "no such file" if not path.exists() else "is not a regular file")
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise SourceError(str(path), f"cannot be read: {error.strerror}") from error

    def read(self, offset: int, length: int) -> bytes:
        check_range(self, offset, length)
        try:
            with self.path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, offset)
                while len(data) < length and (more := os.pread(file.fileno(), length - len(data), offset + len(data))):
                    data += more
        except OSError as error:
            raise SourceError(self.name, f"cannot be read: {error.strerror}") from error
        if len(data) != length:
            raise SourceError(self.name, f"ended after {len(data)} of {length} bytes at {offset}: it changed meanwhile")
        return data


class LocalFolder:
    """A checkpoint folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        if not path.is_dir():
            what = "is a file, not a folder" if path.exists() else "no such folder"
            raise MissingFileError(str(path), what, "name a checkpoint folder or a .gguf file")

    def open(self, name: str) -> LocalSource:
        return LocalSource(self.path / safe_name(self.name, name))


def check_range(source: Source, offset: int, length: int) -> None:
    """Refuse a range outside the file before anything is allocated for it."""
    if offset < 0 or length < 0 or offset + length > source.size_bytes:
        raise SourceError(source.name, f"bytes {offset} to {offset + length} lie outside the file's {source.size_bytes} bytes")


def safe_name(folder: str, name: str) -> str:
    """A plain file name: an index may not lead out of the checkpoint's folder."""
    if not name or name in (".", "..") or any(sign in name for sign in "/\\\0:%?#"):
        raise SourceError(folder, f"{name!r} is not a plain file name")
    return name
