"""One file from a web server, verified by the digest in the URI's fragment, else by size and ETag. No credentials are sent."""

from paceline_compat.places.uri import WebUri
from paceline_runtime.fetch.client import Client
from paceline_runtime.fetch.errors import RefusedError, TransientError
from paceline_runtime.fetch.listing import Digest, Listing, RemoteFile


def list_web(uri: WebUri, client: Client) -> Listing:
    """The one file. Its size is learned while it comes where the probe fails: signed addresses often allow GET only."""
    size_bytes, etag = _probe(uri.url, client)
    digest = Digest("sha256", uri.sha256) if uri.sha256 else None
    return Listing("", (RemoteFile(uri.file_name, uri.url, size_bytes, digest, etag),))


def _probe(url: str, client: Client) -> tuple[int | None, str | None]:
    """Size and strong ETag (a weak one does not vouch for bytes: RFC 9110 section 8.8.1)."""
    try:
        with client.stream("HEAD", url) as response:
            length, etag = response.headers.get("content-length", ""), response.headers.get("etag")
            # Servers that make the body on request often say 0 here; an empty file is soon learned to be one.
            return (int(length) or None if length.isdigit() else None), (None if (etag or "W/").startswith("W/") else etag)
    except (RefusedError, TransientError):
        return None, None
