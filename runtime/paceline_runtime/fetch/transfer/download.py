"""One remote file into one partial file: ranged, resumed, verified."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from paceline_runtime.fetch.client import Client, place
from paceline_runtime.fetch.errors import IntegrityError, InterruptedFetch, RefusedError, TransientError
from paceline_runtime.fetch.listing import RemoteFile
from paceline_runtime.fetch.transfer.partial import PartialFile


class Download:
    """`on_bytes` hears how many bytes have arrived, as a negative number when bytes are thrown away."""

    def __init__(
        self,
        client: Client,
        auth: httpx.Auth | None,
        on_bytes: Callable[[int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._client, self._auth = client, auth
        self._on_bytes, self._should_stop = on_bytes, should_stop

    def run(self, file: RemoteFile, path: Path) -> None:
        """Bring `path` to the whole, verified content of `file`.

        A digest that does not match is fetched once more from the start (a cache on the way may have been at fault);
        then IntegrityError, and nothing is left under `path`.
        """
        with PartialFile(path, file.digest, file.size_bytes) as partial:
            self._on_bytes(partial.size_bytes)
            if not file.can_resume:
                self._restart(partial)
            for is_last_chance in (False, True):
                self._fill(file, partial)
                if partial.matches():
                    partial.sync()
                    return
                self._restart(partial)
                if is_last_chance:
                    break
        path.unlink()
        assert file.digest is not None
        raise IntegrityError(f"{file.path}: its content does not have the {file.digest.algorithm} that the source announces")

    def _restart(self, partial: PartialFile) -> None:
        self._on_bytes(-partial.size_bytes)
        partial.restart()

    def _fill(self, file: RemoteFile, partial: PartialFile) -> None:
        """Ask until the whole size is there."""
        attempts, farthest = self._client.attempts(), partial.size_bytes
        while not self._is_whole(file, partial):
            try:
                if self._receive(file, partial) and file.size_bytes is None:
                    return
            except TransientError as error:
                if partial.size_bytes > farthest:  # than ever: what starts over grows each time, and may never arrive
                    farthest = partial.size_bytes
                    attempts.progressed()
                attempts.failed(error)
                if not file.can_resume:
                    self._restart(partial)

    def _is_whole(self, file: RemoteFile, partial: PartialFile) -> bool:
        if file.size_bytes is not None and partial.size_bytes > file.size_bytes:
            self._restart(partial)
        return partial.size_bytes == file.size_bytes

    def _receive(self, file: RemoteFile, partial: PartialFile) -> bool:
        """One request's bytes. True at the end of a body whose length the server vouched for."""
        headers = _range_headers(file, partial.size_bytes)
        with self._client.stream("GET", file.url, self._auth, headers) as response:
            _check_etag(file, response)
            if file.digest and file.digest.algorithm == "md5" and _is_encrypted(response):
                partial.trust_size()
            if partial.size_bytes and not _continues(response, partial.size_bytes):
                self._restart(partial)
                if response.status_code == 206:
                    raise TransientError(f"{place(file.url)}: answered 206 with another part than was asked for")
            if response.status_code == 416:
                raise TransientError(f"{place(file.url)}: answered 416 to a range")
            _check_end_is_known(file, response)
            _check_is_plain(file, response)
            # No chunk size: httpx would hold bytes back to fill a chunk, and lose them when the connection breaks.
            for chunk in response.iter_raw():
                partial.append(chunk)
                self._on_bytes(len(chunk))
                if self._should_stop():
                    raise InterruptedFetch("interrupted; run the same command again to resume")
                if file.size_bytes is not None and partial.size_bytes > file.size_bytes:
                    self._restart(partial)
                    raise IntegrityError(f"{file.path}: the server sends more than the {file.size_bytes} bytes announced")
        if file.size_bytes is not None and partial.size_bytes < file.size_bytes:
            raise TransientError(f"{place(file.url)}: ended after {partial.size_bytes} of {file.size_bytes} bytes")
        return True


def _range_headers(file: RemoteFile, offset: int) -> Mapping[str, str]:
    if not offset:
        return {}
    return {"Range": f"bytes={offset}-"} | ({"If-Range": file.etag} if file.etag else {})


def _continues(response: httpx.Response, offset: int) -> bool:
    """Whether the response goes on at `offset`: servers may ignore a range and answer 200 with everything."""
    match = re.match(r"bytes (\d{1,18})-", response.headers.get("content-range", ""))
    return response.status_code == 206 and match is not None and int(match[1]) == offset


def _check_etag(file: RemoteFile, response: httpx.Response) -> None:
    etag = response.headers.get("etag")
    if file.etag and etag and etag != file.etag and response.is_success:
        raise IntegrityError(f"{file.path}: changed at the source while it was fetched; run the command again")


def _check_end_is_known(file: RemoteFile, response: httpx.Response) -> None:
    """A body that ends with its connection looks the same when it was cut off."""
    is_vouched_for = file.size_bytes is not None or file.digest is not None
    if not is_vouched_for and not {"content-length", "transfer-encoding"} & set(response.headers):
        raise RefusedError(f"{place(file.url)}: tells no length; give the digest as #sha256=... to have it verified")


def _check_is_plain(file: RemoteFile, response: httpx.Response) -> None:
    """Some servers compress although they were asked not to; only a digest tells whether the file itself is meant."""
    coding = response.headers.get("content-encoding") or "identity"
    if file.digest is None and not {"identity", "aws-chunked"}.issuperset(re.split(r"[\s,]+", coding.lower().strip(" ,"))):
        raise RefusedError(f"{place(file.url)}: sends the file {coding}-encoded, not as it is; have it served as it is")


def _is_encrypted(response: httpx.Response) -> bool:
    """Object stores say MD5 in the ETag only of objects that no managed or customer key encrypts."""
    managed = response.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    return managed or "x-amz-server-side-encryption-customer-algorithm" in response.headers
