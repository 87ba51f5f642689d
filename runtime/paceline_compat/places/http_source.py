"""Ranged reads over HTTP(S) and of hub repositories: headers without downloading, within a budget. Stdlib only.

Called by `location.open_location`; the operator's inspect Job and webhook come through here. The hub's address comes
from the caller (`HF_ENDPOINT`), never from this code.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import IO

from paceline_compat.errors import MetadataError, MissingFileError, SourceError
from paceline_compat.places.budget import Budget
from paceline_compat.places.http_deadline import opened_within
from paceline_compat.places.source import check_range, safe_name

__all__ = ["Budget", "HttpFolder", "HttpSource"]

_FIRST_READ_BYTES = 64 << 10
_COMMIT_HEADER = "X-Repo-Commit"


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows redirects within http(s) and drops the token when the host changes: hubs redirect to storage hosts.

    `commit` is what the first answer says: the storage host knows nothing of commits.
    """

    commit: str | None = None

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            raise SourceError(req.full_url, f"redirects to {new.scheme}://, which is not followed")
        self.commit = self.commit or headers.get(_COMMIT_HEADER)
        if request is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            request.remove_header("Authorization")
        return request


@dataclass(frozen=True)
class HttpFolder:
    """Files under one base address. `token` is sent as a bearer token, to that address's host only."""

    base_url: str
    name: str
    budget: Budget
    token: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0

    def open(self, name: str) -> HttpSource:
        return HttpSource(self, safe_name(self.name, name))


class HttpSource:
    """One remote file. Opening it reads its first 64 KiB: the size comes with them, and most headers fit.

    `commit` is what a hub says the revision in the address stands for (its `X-Repo-Commit` header), else None.
    """

    def __init__(self, folder: HttpFolder, file: str) -> None:
        self.name = f"{folder.name}/{file}"
        self._folder, self._url = folder, f"{folder.base_url}/{urllib.parse.quote(file)}"
        self.commit: str | None = None
        self._head, self.size_bytes = self._first()

    def read(self, offset: int, length: int) -> bytes:
        check_range(self, offset, length)
        known = self._head[offset : offset + length]
        offset, length = offset + len(known), length - len(known)
        if not length:
            return known
        data, total = self._get(offset, length)
        if len(data) != length or total != self.size_bytes:
            raise SourceError(self.name, f"gave {len(data)} of {length} bytes at {offset}: it changed or broke off")
        return known + data

    def _first(self) -> tuple[bytes, int]:
        data, total = self._get(0, _FIRST_READ_BYTES)
        if len(data) != min(total, _FIRST_READ_BYTES):
            raise SourceError(self.name, f"broke off after {len(data)} bytes")
        return data, total

    def _get(self, offset: int, length: int) -> tuple[bytes, int]:
        """The bytes of one range and the file's whole size."""
        folder = self._folder
        folder.budget.spend(self.name, length)
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", "Accept-Encoding": "identity"}
        if folder.token:
            headers["Authorization"] = f"Bearer {folder.token}"
        request = urllib.request.Request(self._url, headers=headers)
        left_s = folder.budget.left_s(self.name)
        try:
            redirect = _SafeRedirect()
            with opened_within(request, left_s, min(folder.timeout_s, left_s), redirect) as response:
                self.commit = redirect.commit or response.headers.get(_COMMIT_HEADER) or self.commit
                return self._bounded(response, length), self._total(response, offset, length)
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error)
        except MetadataError:
            raise
        except (OSError, HTTPException, ValueError) as error:
            raise SourceError(self.name, f"could not be reached: {getattr(error, 'reason', None) or error}") from error

    def _bounded(self, response: HTTPResponse, length: int) -> bytes:
        """At most `length` bytes, in pieces: a slow sender meets the budget, not just the socket's timeout."""
        data, piece = bytearray(), b"any"
        while len(data) < length and piece:
            piece = response.read1(length - len(data))
            self._folder.budget.left_s(self.name)  # also where nothing came: then it may have been cut off for that
            data += piece
        return bytes(data)

    def _total(self, response: HTTPResponse, offset: int, length: int) -> int:
        """The file's whole size, once it is known that the body begins at `offset`."""
        placed = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", response.headers.get("Content-Range", ""))
        if response.status == 206 and placed:
            if int(placed[1]) != offset:
                raise SourceError(self.name, f"gave bytes from {placed[1]} on where those from {offset} on were asked for")
            return int(placed[2])
        size = response.headers.get("Content-Length", "")
        if response.status == 200 and not offset and size.isdigit() and int(size) <= length:
            return int(size)
        raise SourceError(self.name, "its server does not answer ranged requests", "use a server that does")

    def _refused(self, error: urllib.error.HTTPError) -> tuple[bytes, int]:
        if error.code in (404, 410):
            raise MissingFileError(self.name, "no such file")
        if error.code == 416:
            return b"", 0
        remedy = "give a token that may read it" if error.code in (401, 403) else ""
        raise SourceError(self.name, f"its server answered {error.code}", remedy)
