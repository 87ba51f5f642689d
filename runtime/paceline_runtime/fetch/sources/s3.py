"""S3-compatible object stores: ListObjectsV2 and ranged GETs, path style, signed when there are keys.

An object's ETag is the MD5 of its content unless it was uploaded in parts or encrypted with a managed key; then only size
and ETag vouch for it.
"""

import re
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from paceline_compat.places.uri import S3Uri
from paceline_runtime.fetch.client import Client, place
from paceline_runtime.fetch.errors import RefusedError, RequestError
from paceline_runtime.fetch.listing import Digest, Listing, RemoteFile
from paceline_runtime.fetch.paths import is_ours, safe_path
from paceline_runtime.fetch.sources.environment import address, credential
from paceline_runtime.fetch.sources.sigv4 import Credentials, SigV4Auth


@dataclass(frozen=True)
class _Object:
    key: str
    size_bytes: int
    etag: str


def list_s3(uri: S3Uri, client: Client, environment: Mapping[str, str]) -> Listing:
    """The object that the prefix names, or all objects below it."""
    variable = _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    base = f"{address(environment, variable, 's3')}/{uri.bucket}"
    auth = _auth(environment)
    objects = _objects(base, uri.prefix, client, auth)
    files = tuple(_remote_file(base, uri.prefix, item) for item in objects if not is_ours(_name(uri.prefix, item.key)))
    if not files:
        raise RefusedError(f"{place(base)}: no object under {uri.prefix!r}")
    return Listing("", files, auth)


def _auth(environment: Mapping[str, str]) -> SigV4Auth | None:
    key, secret = credential(environment, "AWS_ACCESS_KEY_ID"), credential(environment, "AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        raise RequestError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together: set both, or neither for public data")
    if not key or not secret:
        return None
    credentials = Credentials(key, secret, credential(environment, "AWS_SESSION_TOKEN"))
    region = credential(environment, _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION"))
    return SigV4Auth(credentials, region or "us-east-1")


def _first(environment: Mapping[str, str], preferred: str, other: str) -> str:
    """Which of two variables counts: AWS's own tools read them in this order."""
    return preferred if environment.get(preferred, "").strip() else other


def _objects(base: str, prefix: str, client: Client, auth: httpx.Auth | None) -> Iterator[_Object]:
    """All pages; objects that merely begin like the prefix, and folder markers, are left out."""
    query = {"list-type": "2", "prefix": prefix}
    while True:
        # safe="" since S3 expects a slash inside a query to be encoded, also in what is signed.
        encoded = urllib.parse.urlencode(query, safe="", quote_via=urllib.parse.quote)
        page = _page(client.get(f"{base}?{encoded}", auth).body, base)
        for item in map(_object, page.iter("Contents")):
            is_below = not prefix or item.key == prefix or item.key.startswith(f"{prefix}/")
            if is_below and not item.key.endswith("/"):
                yield item
        if page.findtext("IsTruncated") != "true":
            return
        token = page.findtext("NextContinuationToken")
        if not token or token == query.get("continuation-token"):
            raise RefusedError(
                f"{place(base)}: the listing is cut off and says not how to go on; is this an S3 store (version 2)?"
            )
        query["continuation-token"] = token


def _page(body: bytes, base: str) -> ET.Element:
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise RefusedError(f"{place(base)}: the listing declares entities, which no object store does")
    try:
        root = ET.fromstring(body)
    except ET.ParseError as error:
        raise RefusedError(f"{place(base)}: the answer is not an object listing; is AWS_ENDPOINT_URL right?") from error
    for element in root.iter():  # stores differ in the namespace, and in how they write it
        element.tag = element.tag.rpartition("}")[2]
    if root.tag != "ListBucketResult":
        raise RefusedError(f"{place(base)}: the answer is <{root.tag}>, not an object listing")
    return root


def _object(item: ET.Element) -> _Object:
    key, size, etag = (item.findtext(name) for name in ("Key", "Size", "ETag"))
    if key is None or size is None or not re.fullmatch(r"[0-9]{1,18}", size):
        raise RefusedError("the object store lists an object without Key or Size")
    return _Object(key, int(size), etag or "")


def _name(prefix: str, key: str) -> str:
    return key.rpartition("/")[2] if key == prefix else key.removeprefix(prefix).removeprefix("/")


def _remote_file(base: str, prefix: str, item: _Object) -> RemoteFile:
    # Some stores leave the quotes out of the listing; headers have them.
    etag = f'"{item.etag}"' if item.etag and not item.etag.endswith('"') else item.etag
    md5 = etag.strip('"')
    return RemoteFile(
        path=safe_path(_name(prefix, item.key)),
        url=f"{base}/{urllib.parse.quote(item.key, safe='/-_.~')}",
        size_bytes=item.size_bytes,
        digest=Digest("md5", md5) if re.fullmatch(r"[0-9a-f]{32}", md5) else None,
        etag=etag or None,
    )
