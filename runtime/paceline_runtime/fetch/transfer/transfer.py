"""A listing into a folder: space checked first, files side by side into partials, all renamed once all are verified."""

import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from paceline_runtime.fetch.client import Client
from paceline_runtime.fetch.errors import FolderError, IntegrityError
from paceline_runtime.fetch.listing import Listing, RemoteFile
from paceline_runtime.fetch.paths import PARTIAL_SUFFIX, inside
from paceline_runtime.fetch.transfer.download import Download
from paceline_runtime.fetch.transfer.manifest import FetchedFile
from paceline_runtime.fetch.transfer.partial import local_errors
from paceline_runtime.fetch.transfer.progress import Progress
from paceline_runtime.fetch.transfer.unpack import unpack

_RESERVE_BYTES = 64 << 20
_MIB = 1 << 20


class Transfer:
    """`kept` maps paths to identities of files that the folder already holds whole; they are not fetched again."""

    def __init__(self, folder: Path, listing: Listing, kept: Mapping[str, FetchedFile], progress: Progress) -> None:
        self._folder, self._listing, self._kept, self._progress = folder, listing, kept, progress
        _check_distinct(listing.files)
        self._wanted = [file for file in listing.files if not self._is_kept(file)]
        with local_errors(folder):
            self._partials = {file: self._partial(file) for file in self._wanted}

    def download(self, client: Client, num_workers: int, stop: threading.Event) -> None:
        """Fetch and verify. On any failure the partials stay, and what the folder held before is whole."""
        self._progress.plan(len(self._wanted), sum(file.size_bytes or 0 for file in self._wanted), self._listing.revision)
        self._check_space()
        self._download_all(client, num_workers, stop)

    def place(self, stop: threading.Event) -> tuple[FetchedFile, ...]:
        """Give the files their names; what the folder then holds of the listing."""
        entries = {file.path: self._kept[file.path] for file in self._listing.files if file not in self._partials}
        for file in self._wanted:
            # A later layer of an image covers the files of an earlier one.
            entries |= {entry.path: entry for entry in self._place(file, stop)}
        self._remove_strays()
        return tuple(entries[path] for path in sorted(entries))

    def _is_kept(self, file: RemoteFile) -> bool:
        entry = self._kept.get(file.path)
        return entry is not None and entry.identity == file.identity and file.can_resume

    def _partial(self, file: RemoteFile) -> Path:
        target = inside(self._folder, file.path)
        return target.with_name(f"{target.name}.{file.identity}{PARTIAL_SUFFIX}")

    def _check_space(self) -> None:
        """Archives need their size twice at least: as they come, and unpacked."""
        needed = sum((file.size_bytes or 0) * (2 if file.is_archive else 1) for file in self._wanted)
        present = sum(path.stat().st_size for path in self._partials.values() if path.exists())
        free = shutil.disk_usage(self._folder).free
        if needed - present + _RESERVE_BYTES > free:
            raise FolderError(
                f"{self._folder}: {(needed - present) / _MIB:.0f} MiB are still to come and {free / _MIB:.0f} MiB are free"
                f" ({_RESERVE_BYTES / _MIB:.0f} MiB are left alone); give the volume more space"
            )

    def _download_all(self, client: Client, num_workers: int, stop: threading.Event) -> None:
        """The first failure stops the other downloads at their next chunk, and is raised."""
        failed = threading.Event()
        download = Download(client, self._listing.auth, self._progress.add, lambda: stop.is_set() or failed.is_set())
        with ThreadPoolExecutor(num_workers) as pool:
            futures = [pool.submit(self._download, download, file) for file in self._wanted]
            done, waiting = wait(futures, return_when=FIRST_EXCEPTION)
            failed.set()
            for future in waiting:
                future.cancel()
        for future in futures:
            if future in done:
                future.result()

    def _download(self, download: Download, file: RemoteFile) -> None:
        download.run(file, self._partials[file])
        self._progress.file(file.path)

    def _place(self, file: RemoteFile, stop: threading.Event) -> list[FetchedFile]:
        partial = self._partials[file]
        with local_errors(partial):
            if file.is_archive:
                paths = unpack(partial, self._folder, stop.is_set)
                partial.unlink()
            else:
                partial.rename(inside(self._folder, file.path))
                paths = [file.path]
            digest = f"{file.digest.algorithm}:{file.digest.hex}" if file.digest and not file.is_archive else ""
            sizes = [(self._folder / path).stat().st_size for path in paths]
        return [FetchedFile(path, size, file.identity, digest) for path, size in zip(paths, sizes, strict=True)]

    def _remove_strays(self) -> None:
        """Partials of versions that the source no longer has."""
        for path in self._folder.rglob(f"*.{'?' * 12}{PARTIAL_SUFFIX}"):
            with local_errors(path):
                path.unlink(missing_ok=True)


def _check_distinct(files: tuple[RemoteFile, ...]) -> None:
    counts = Counter(file.path for file in files)
    twice = sorted(path for path, count in counts.items() if count > 1)
    if twice:
        raise IntegrityError(f"the source lists the same name twice: {', '.join(twice)}")
