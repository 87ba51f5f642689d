"""A checkpoint's place as text, taken apart: the one grammar of `hf://`, `s3://`, `oci://`, `https://`, `pvc://` and paths.

`open_location`, `paceline fetch` and the operator parse with it; a test holds the patterns of the CRD against it. It asks
neither network nor disk. Each caller narrows the grammar for itself: a CRD's `https://` names a GGUF file, for example.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field

HUB_FORM = "hf://org/name[@revision][/path/file.gguf]"
# In a URI a slash of the revision is written %2F.
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>\w(?:[\w.-]|%2F)*))?(?:/(?P<file>(?:[\w.-]+/)*[\w.-]+\.gguf))?", re.ASCII
)
_OCI = re.compile(
    r"(?P<registry>[a-zA-Z0-9.-]+(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?)/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_CLAIM = re.compile(r"(?P<claim>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)(?P<path>/[\w./-]*)?", re.ASCII)


class UriError(ValueError):
    """A text that is no URI of a checkpoint; the message says which form was expected."""


@dataclass(frozen=True)
class HubUri:
    """A repository of the hub, or one GGUF file in it; the first shard of a split GGUF stands for all of them."""

    repo: str
    revision: str | None
    file: str | None

    @property
    def revision_or_main(self) -> str:
        return self.revision or "main"

    @property
    def folder(self) -> str:
        """The repository's folder that holds the file, empty for the uppermost."""
        return (self.file or "").rpartition("/")[0]

    @property
    def file_name(self) -> str | None:
        """The file without the repository's folders: so it is called where it is fetched to."""
        return self.file and self.file.rpartition("/")[2]


@dataclass(frozen=True)
class S3Uri:
    """`s3://bucket/prefix`: one object of that name, or all below it."""

    bucket: str
    prefix: str

    @property
    def file_name(self) -> str:
        """What the prefix is called without its folders: the file, if it names one."""
        return self.prefix.rpartition("/")[2]


@dataclass(frozen=True)
class WebUri:
    """`https://host/file[#sha256=HEX]`; plain `http://` only together with the digest."""

    url: str = field(repr=False)
    file_name: str
    sha256: str | None


@dataclass(frozen=True)
class OciUri:
    """`oci://registry/repository:tag` or `...@sha256:HEX`."""

    registry: str
    repository: str
    reference: str


@dataclass(frozen=True)
class ClaimUri:
    """`pvc://claim/path`: a folder or file on a PersistentVolumeClaim, which is read where it is mounted."""

    claim: str
    path: str


@dataclass(frozen=True)
class PathUri:
    """A path, or `file://` before it."""

    path: str


Uri = HubUri | S3Uri | WebUri | OciUri | ClaimUri | PathUri


def parse_uri(text: str) -> Uri:
    """The place that `text` names, or UriError with the form that was expected."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme == "file":
        return PathUri(rest if scheme == "file" else text)
    if scheme == "hf":
        return _hub(rest)
    if scheme == "s3":
        return _s3(rest)
    if scheme == "oci":
        return _oci(rest)
    if scheme == "pvc":
        return _claim(rest)
    if scheme in ("https", "http"):
        return _web(text)
    raise UriError(f"{scheme}:// is none of hf://, s3://, https://, oci://, pvc:// or a path")


def at_revision(text: str, revision: str) -> str:
    """The URI of a hub's repository with a revision written into it: `hf://org/name@revision/file.gguf`."""
    repository = "/".join(text.split("/")[:4])
    return f"{repository}@{revision.replace('/', '%2F')}{text.removeprefix(repository)}"


def web_address(text: str) -> urllib.parse.SplitResult | None:
    """The parts of an http(s) address that names a host and no user; None for any other text."""
    try:
        parts = urllib.parse.urlsplit(text)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_sound and "@" not in parts.netloc else None


def _hub(rest: str) -> HubUri:
    match = _HUB.fullmatch(rest)
    # A web server would take "." and ".." for folders, and a listing knows no such names.
    if match is None or ".." in rest or "." in f"{match['repo']}/{match['file']}".split("/"):
        raise UriError(f"a hub source reads {HUB_FORM}")
    revision = match["revision"]
    return HubUri(match["repo"], revision and urllib.parse.unquote(revision), match["file"])


def _s3(rest: str) -> S3Uri:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in prefix.split("/"):
        raise UriError("an object store source reads s3://bucket/prefix")
    return S3Uri(bucket, prefix.strip("/"))


def _oci(rest: str) -> OciUri:
    match = _OCI.fullmatch(rest)
    reference = match and (match["digest"] or match["tag"])
    if match is None or not reference:
        raise UriError("a registry source reads oci://registry/repository:tag or oci://registry/repository@sha256:...")
    return OciUri(match["registry"], match["repository"], reference)


def _claim(rest: str) -> ClaimUri:
    match = _CLAIM.fullmatch(rest)
    if match is None or ".." in rest:
        raise UriError("a source on a claim reads pvc://claim or pvc://claim/path")
    return ClaimUri(match["claim"], (match["path"] or "").rstrip("/"))


def _web(text: str) -> WebUri:
    parts = web_address(text)
    if parts is None:
        raise UriError("a web source reads https://host/path/file[#sha256=...], without user or password in it")
    digest = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", parts.fragment)
    if parts.fragment and digest is None:
        raise UriError("the part after # must read sha256= and 64 hexadecimal digits")
    if parts.scheme == "http" and digest is None:
        raise UriError("plain http:// is fetched only with #sha256=...; use https:// or give the digest")
    file_name = urllib.parse.unquote(parts.path.rpartition("/")[2])
    if not file_name:
        raise UriError("a web source names one file: https://host/path/file")
    return WebUri(urllib.parse.urldefrag(text).url, file_name, digest[1].lower() if digest else None)
