"""Sources as text, taken apart. Pure: nothing is asked of network or disk."""

import re
import urllib.parse
from dataclasses import dataclass, field

from paceline_runtime.fetch.errors import RequestError
from paceline_runtime.fetch.paths import safe_path

_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>(?:[\w.-]|%2F)+))?(?:/(?P<file>[\w.-]+\.gguf))?", re.ASCII)
_OCI = re.compile(
    r"(?P<registry>[a-zA-Z0-9.-]+(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True)
class HubUri:
    """``hf://org/repo[@revision][/file.gguf]``; the first shard of a split GGUF stands for all of them.

    The URI writes a slash in the revision as %2F.
    """

    repo: str
    revision: str
    file: str | None


@dataclass(frozen=True)
class S3Uri:
    """``s3://bucket/prefix``: one object of that name, or all below it."""

    bucket: str
    prefix: str


@dataclass(frozen=True)
class WebUri:
    """``https://host/file[#sha256=HEX]``; plain ``http://`` only together with the digest."""

    url: str = field(repr=False)
    file: str
    sha256: str | None


@dataclass(frozen=True)
class OciUri:
    """``oci://registry/repository:tag`` or ``...@sha256:HEX``."""

    registry: str
    repository: str
    reference: str


@dataclass(frozen=True)
class MountedUri:
    """``pvc://claim/path`` or a path: there already, by a mount."""

    text: str

    @property
    def is_path(self) -> bool:
        return not self.text.startswith("pvc://")


Uri = HubUri | S3Uri | WebUri | OciUri | MountedUri


def parse_uri(text: str, revision: str | None = None) -> Uri:
    """The source that ``text`` names, or RequestError with the form that was expected."""
    scheme, separator, rest = text.partition("://")
    if revision and scheme != "hf":
        raise RequestError("--revision belongs to hf:// sources; other sources carry their version in the URI")
    if not separator or scheme in ("pvc", "file"):
        return MountedUri(rest if scheme == "file" else text)
    if scheme == "hf":
        return _hub(rest, revision)
    if scheme == "s3":
        return _s3(rest)
    if scheme == "oci":
        return _oci(rest)
    if scheme in ("https", "http"):
        return _web(text)
    raise RequestError(f"{scheme}:// is none of hf://, s3://, https://, oci://, pvc:// or a path")


def display(text: str) -> str:
    """A URI as it may be shown and stored: signed URLs carry their secret in the query."""
    return text.split("?")[0].split("#")[0]


def _hub(rest: str, revision: str | None) -> HubUri:
    match = _HUB.fullmatch(rest)
    if match is None or ".." in rest:
        raise RequestError("a hub source reads hf://org/name[@revision][/file.gguf]")
    written = urllib.parse.unquote(match["revision"] or "")
    if revision and written and revision != written:
        raise RequestError(f"the URI says @{written} and --revision says {revision}; keep one")
    return HubUri(match["repo"], revision or written or "main", match["file"])


def _s3(rest: str) -> S3Uri:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in prefix.split("/"):
        raise RequestError("an object store source reads s3://bucket/prefix")
    return S3Uri(bucket, prefix.strip("/"))


def _oci(rest: str) -> OciUri:
    match = _OCI.fullmatch(rest)
    reference = match and (match["digest"] or match["tag"])
    if match is None or not reference:
        raise RequestError("a registry source reads oci://registry/repository:tag or oci://registry/repository@sha256:...")
    return OciUri(match["registry"], match["repository"], reference)


def _web(text: str) -> WebUri:
    try:
        parts = urllib.parse.urlsplit(text)
        is_plain = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        is_plain = False
    if not is_plain:
        raise RequestError("a web source reads https://host/path/file[#sha256=...], without user or password in it")
    digest = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", parts.fragment)
    if parts.fragment and digest is None:
        raise RequestError("the part after # must read sha256= and 64 hexadecimal digits")
    if parts.scheme == "http" and digest is None:
        raise RequestError("plain http:// is fetched only with #sha256=...; use https:// or give the digest")
    file = urllib.parse.unquote(parts.path.rpartition("/")[2])
    if not file:
        raise RequestError("a web source names one file: https://host/path/file")
    return WebUri(urllib.parse.urldefrag(text).url, safe_path(file), digest[1].lower() if digest else None)
