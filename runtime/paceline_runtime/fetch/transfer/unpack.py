"""A tar layer into plain files. It refuses what could write elsewhere or fill the disk; links have no place in a model."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from paceline_runtime.fetch.errors import FolderError, IntegrityError, InterruptedFetch
from paceline_runtime.fetch.paths import inside, safe_path
from paceline_runtime.fetch.transfer.partial import local_errors

_CHUNK_BYTES = 1 << 20
_RESERVE_BYTES = 64 << 20
_WHITEOUT = ".wh."


def unpack(archive: Path, folder: Path, should_stop: Callable[[], bool]) -> list[str]:
    """Unpack into `folder`; the relative paths of the files. gzip is recognized by content."""
    try:
        with tarfile.open(archive) as tar:
            return [_extract(tar, member, folder, should_stop) for member in _files(tar, archive)]
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise IntegrityError(f"{archive.name}: not a tar archive, or broken: {error}") from error


def _files(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    for member in tar:
        name = member.name.removeprefix("./").rstrip("/")
        if member.isdir() and name in ("", "."):
            continue
        safe_path(name)
        if name.rpartition("/")[2].startswith(_WHITEOUT):
            raise IntegrityError(f"{archive.name}: {name} deletes a file of another layer; flatten the image's layers")
        if member.isreg():
            member.name = name
            yield member
        elif not member.isdir():
            raise IntegrityError(f"{archive.name}: {name} is a link or a device; a model's layer holds plain files only")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, should_stop: Callable[[], bool]) -> str:
    target = inside(folder, member.name)
    free_bytes = shutil.disk_usage(folder).free - _RESERVE_BYTES
    if member.size > free_bytes:
        raise FolderError(f"{folder}: {member.name} unpacks to {member.size} bytes and {max(free_bytes, 0)} are free")
    source = tar.extractfile(member)
    assert source is not None
    with local_errors(target):
        # A link of that name would be written through, and a server that has the old file mapped would see it change.
        target.unlink(missing_ok=True)
        file = target.open("wb")
    with source, file:
        while chunk := source.read(_CHUNK_BYTES):
            with local_errors(target):
                file.write(chunk)
            if should_stop():
                raise InterruptedFetch("interrupted while unpacking; run the same command again")
    return member.name
