"""The command: one request against one folder, and an exit code. `paceline_runtime.cli` calls it.

Everything that can go wrong arrives here as a FetchError and leaves as one line on stderr and the error's exit code.
"""

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from paceline_compat.places.uri import ClaimUri, HubUri, OciUri, PathUri, S3Uri, WebUri
from paceline_runtime.fetch.arguments import Request, display, parse_request
from paceline_runtime.fetch.client import Client
from paceline_runtime.fetch.errors import EXIT_OK, FetchError, FolderError, InterruptedFetch, RefusedError, RequestError
from paceline_runtime.fetch.listing import Listing
from paceline_runtime.fetch.sources.hub import list_hub
from paceline_runtime.fetch.sources.oci import list_oci
from paceline_runtime.fetch.sources.s3 import list_s3
from paceline_runtime.fetch.sources.selection import select
from paceline_runtime.fetch.sources.web import list_web
from paceline_runtime.fetch.transfer.manifest import (
    BEING_REPLACED,
    FetchedFile,
    Manifest,
    being_replaced,
    read_manifest,
    write_manifest,
)
from paceline_runtime.fetch.transfer.partial import local_errors
from paceline_runtime.fetch.transfer.progress import Progress
from paceline_runtime.fetch.transfer.transfer import Transfer

_LOCK_NAME = ".paceline-fetch.lock"
_LOCK_POLL_S = 0.5
_SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def run(args: argparse.Namespace) -> int:
    """Fetch; the exit code. See `errors` for what each means."""
    style = ("human" if sys.stdout.isatty() else "json") if args.progress == "auto" else args.progress
    # httpx logs each address at INFO, and redirects of hubs carry signatures in theirs.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        with _stop_on_signal() as stop:
            fetch(parse_request(args), os.environ, Progress(sys.stdout, style), stop)
    except FetchError as error:
        print(f"paceline fetch: {_without_secrets(str(error), os.environ)}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


def fetch(request: Request, environment: Mapping[str, str], progress: Progress, stop: threading.Event) -> None:
    """Make the folder hold what the request names. A folder that is complete is left alone, and no source is asked."""
    if isinstance(request.uri, ClaimUri | PathUri):
        _check_mounted(request.uri)
        progress.note("mounted", f"{request.text} is read where it is mounted; nothing to fetch")
        return
    folder = request.folder
    # Before the lock, since the folder may be mounted read-only by now.
    if _is_complete(request):
        progress.note("complete", f"{folder} is complete already; nothing to fetch")
        return
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, progress, stop):
        if _is_complete(request):
            progress.note("complete", f"{folder} was completed by another fetch")
            return
        manifest = read_manifest(folder)
        if manifest and manifest.request not in (request.key, BEING_REPLACED) and not request.refresh:
            raise RequestError(f"{folder} holds {manifest.source}; choose another folder, or --refresh to replace it")
        _replace(request, environment, progress, stop, manifest)
    progress.note("done", f"{folder} is complete")


def _is_complete(request: Request) -> bool:
    manifest = read_manifest(request.folder)
    if manifest is None or manifest.request != request.key or request.refresh:
        return False
    return manifest.is_whole(request.folder)


def _replace(
    request: Request, environment: Mapping[str, str], progress: Progress, stop: threading.Event, old: Manifest | None
) -> None:
    connections = request.max_concurrency + 1
    with Client(
        max_retries=request.max_retries, timeout_s=request.timeout_s, num_connections=connections, wait=stop.wait
    ) as client:
        listing = _select(request, _list(request, client, environment))
        transfer = Transfer(request.folder, listing, _kept(request.folder, old), progress)
        transfer.download(client, request.max_concurrency, stop)
        # From here the folder is neither the old version nor the new one. Whoever goes on after an interruption must still
        # know which files are of the old one, and can trust none of them: versions often have equal sizes.
        write_manifest(request.folder, being_replaced(old, listing))
        files = transfer.place(stop)
    _remove_superseded(request.folder, old, files)
    write_manifest(request.folder, Manifest(request.key, display(request.text), listing.revision, files))


def _list(request: Request, client: Client, environment: Mapping[str, str]) -> Listing:
    match request.uri:
        case HubUri():
            return list_hub(request.uri, client, environment)
        case S3Uri():
            return list_s3(request.uri, client, environment)
        case OciUri():
            return list_oci(request.uri, client, environment, plain_http=request.plain_http)
        case WebUri():
            return list_web(request.uri, client)
    raise AssertionError(request.uri)


def _select(request: Request, listing: Listing) -> Listing:
    """Hubs and buckets hold more than a model needs; a packed artifact and a named file are taken as they are."""
    names = [file.path for file in listing.files]
    is_named_file = len(names) == 1 or (isinstance(request.uri, HubUri) and request.uri.file is not None)
    is_repository = isinstance(request.uri, (HubUri, S3Uri)) and not is_named_file
    include = request.include or ([] if is_repository else ["*"])
    chosen = select(names, include, request.exclude)
    return replace(listing, files=tuple(file for file in listing.files if file.path in chosen))


def _kept(folder: Path, old: Manifest | None) -> dict[str, FetchedFile]:
    """What an earlier fetch left whole, by path."""
    return {file.path: file for file in old.files if file.is_whole(folder)} if old else {}


def _remove_superseded(folder: Path, old: Manifest | None, files: tuple[FetchedFile, ...]) -> None:
    """Remove the files that only the earlier manifest names: a model would be loaded with an old shard beside the new ones."""
    for path in {file.path for file in old.files} - {file.path for file in files} if old else ():
        with local_errors(folder / path):
            (folder / path).unlink(missing_ok=True)


def _check_mounted(uri: ClaimUri | PathUri) -> None:
    if isinstance(uri, PathUri) and not Path(uri.path).exists():
        raise RefusedError(f"{uri.path}: no such file or folder")


@contextmanager
def _locked(folder: Path, progress: Progress, stop: threading.Event) -> Iterator[None]:
    """One fetch at a time in a folder: pods that share a claim wait for the first and then find its work."""
    with local_errors(folder):
        handle = (folder / _LOCK_NAME).open("w")
    with handle:
        if not _try_lock(handle, folder):
            progress.note("waiting", f"another fetch is at work in {folder}; waiting for it")
            # The loop asks again and again: a wait inside flock would sleep through a SIGTERM.
            while not _try_lock(handle, folder):
                if stop.wait(_LOCK_POLL_S):
                    raise InterruptedFetch("interrupted while waiting for another fetch")
        yield


def _try_lock(handle: TextIO, folder: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise FolderError(f"{folder}: its file system knows no locks ({error.strerror}); use another volume") from error
    return True


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT set the event. As process 1 of a container, SIGTERM would otherwise do nothing at all."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # Set from another thread: the main thread may be inside the event's own lock when the signal interrupts it.
    previous = {
        number: signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _without_secrets(text: str, environment: Mapping[str, str]) -> str:
    """The last line of defence: no message is built from a secret, and if one were, it would not be shown."""
    for name in _SECRETS:
        if secret := environment.get(name, "").strip():
            text = text.replace(secret, f"<{name}>")
    return text
