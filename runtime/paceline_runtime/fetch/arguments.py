"""The arguments of `paceline fetch`, and the request that they make. No I/O."""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from paceline_compat.places.uri import HUB_FORM, HubUri, OciUri, Uri, UriError, WebUri, parse_uri
from paceline_runtime.fetch.errors import RequestError
from paceline_runtime.fetch.paths import safe_path
from paceline_runtime.fetch.transfer.manifest import request_key


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `paceline fetch`."""
    parser.add_argument(
        "uri",
        help=f"{HUB_FORM}, s3://bucket/prefix, https://host/file[#sha256=HEX],"
        " oci://registry/repository:tag; pvc:// and paths are there already",
    )
    parser.add_argument("directory", type=_folder, metavar="DIR", help="where the files go; made when it does not exist")
    parser.add_argument("--revision", help="branch, tag or commit of an hf:// source (default: main)")
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="fetch what matches instead of what a model needs; repeatable",
    )
    parser.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="leave out what matches; repeatable")
    parser.add_argument(
        "--refresh", action="store_true", help="ask the source even when DIR is complete, and replace what has changed there"
    )
    parser.add_argument("--max-concurrency", type=_positive_int, default=4, metavar="N", help="files at a time (default: 4)")
    parser.add_argument(
        "--max-retries", type=_count, default=6, metavar="N", help="failures in a row that a file may have (default: 6)"
    )
    parser.add_argument(
        "--timeout-s",
        type=_positive_float,
        default=30.0,
        metavar="S",
        help="how long a silent connection is waited for (default: 30)",
    )
    parser.add_argument("--plain-http", action="store_true", help="speak http to the registry of an oci:// source")
    parser.add_argument(
        "--progress",
        choices=("auto", "human", "json", "none"),
        default="auto",
        help="lines for people or for a log collector (default: by whether stdout is a terminal)",
    )


@dataclass(frozen=True)
class Request:
    """What was asked for, parsed."""

    text: str
    uri: Uri
    folder: Path
    revision: str | None
    include: list[str]
    exclude: list[str]
    refresh: bool
    max_concurrency: int
    max_retries: int
    timeout_s: float
    plain_http: bool

    @property
    def key(self) -> str:
        return request_key(self.text, self.revision, self.include, self.exclude)


def parse_request(args: argparse.Namespace) -> Request:
    """The parsed arguments as a Request; RequestError when they contradict each other."""
    uri = source(args.uri, args.revision)
    if args.plain_http and not isinstance(uri, OciUri):
        raise RequestError("--plain-http belongs to oci:// sources")
    return Request(
        text=args.uri,
        uri=uri,
        folder=args.directory,
        revision=args.revision,
        include=args.include,
        exclude=args.exclude,
        refresh=args.refresh,
        max_concurrency=args.max_concurrency,
        max_retries=args.max_retries,
        timeout_s=args.timeout_s,
        plain_http=args.plain_http,
    )


def source(text: str, revision: str | None = None) -> Uri:
    """The source that a URI and a revision beside it name; RequestError with the form that was expected."""
    try:
        uri = parse_uri(text)
    except UriError as error:
        raise RequestError(str(error)) from error
    if isinstance(uri, WebUri):
        safe_path(uri.file_name)
    return _at_revision(uri, revision) if revision else uri


def _at_revision(uri: Uri, revision: str) -> Uri:
    if not isinstance(uri, HubUri):
        raise RequestError("--revision belongs to hf:// sources; other sources carry their version in the URI")
    if uri.revision and revision != uri.revision:
        raise RequestError(f"the URI says @{uri.revision} and --revision says {revision}; keep one")
    return replace(uri, revision=revision)


def display(text: str) -> str:
    """A URI as it may be shown and stored: signed URLs carry their secret in the query."""
    return text.split("?")[0].split("#")[0]


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("is empty: name a folder, . for this one")
    return Path(text)


def _positive_int(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _count(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


def _positive_float(text: str) -> float:
    if not (value := float(text)) > 0 or value == float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value
