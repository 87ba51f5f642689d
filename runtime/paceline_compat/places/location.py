"""A checkpoint's place, ready to be read: a path, a `.gguf` file, `https://...` or `hf://...` in the grammar of `uri`.

The CLI, the webhook and the inspect Job use it; it returns the folder, and the file inside the folder for GGUF. The HTTP
client is imported when a remote location is named: that takes a fifth of this package's import time.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline_compat.errors import MetadataError, SourceError
from paceline_compat.places.budget import Budget
from paceline_compat.places.source import Folder, LocalFolder
from paceline_compat.places.uri import HUB_FORM, HubUri, UriError, parse_uri, web_address

ENDPOINT_VARIABLE = "HF_ENDPOINT"
TOKEN_VARIABLE = "HF_TOKEN"
_LISTED = 8
_COMMIT = re.compile(r"[0-9A-Za-z]{1,128}")


@dataclass(frozen=True)
class Location:
    """A checkpoint's folder, and the GGUF file in it when the location names one."""

    folder: Folder
    gguf_file: str | None = None

    @property
    def name(self) -> str:
        """How messages call the checkpoint."""
        return f"{self.folder.name}/{self.gguf_file}" if self.gguf_file else self.folder.name


def open_location(
    text: str,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    budget: Budget | None = None,
    environment: Mapping[str, str] = os.environ,
    commit: str | None = None,
) -> Location:
    """Parse a location. Nothing is read yet, except that a local path must exist.

    `endpoint` is the hub's base address and defaults to `HF_ENDPOINT`; `token` defaults to `HF_TOKEN` and goes
    to the hub only, never to a plain `https://` location. `commit` is read in place of the hub location's revision;
    the location keeps its name.
    """
    if text.startswith("hf://"):
        endpoint = endpoint or environment.get(ENDPOINT_VARIABLE)
        return _hub(text, commit, endpoint, token or environment.get(TOKEN_VARIABLE), budget or Budget())
    if text.startswith(("https://", "http://")):
        return _web(text, budget or Budget())
    if not text:
        raise SourceError("location", "is empty")
    if "://" in text:
        raise SourceError(text, "is neither a path nor hf:// nor https://")
    path = sole_gguf(Path(text))
    if path.suffix == ".gguf":
        return Location(LocalFolder(path.parent), path.name)
    return Location(LocalFolder(path))


def sole_gguf(path: Path) -> Path:
    """The GGUF file of a folder that is no safetensors checkpoint; any other path as it is. SourceError: there are several."""
    if not path.is_dir() or (path / "config.json").exists():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:_LISTED])
        raise SourceError(str(path), f"holds {len(files)} GGUF files and no config.json", f"name one of them: {names}")
    return files[0] if files else path


def pinned_location(text: str, token: str | None = None) -> tuple[Location, str | None]:
    """A hub location at the commit that it stands for now, and that commit: nothing read later is of another one.

    It takes one small request. For other places, or where the hub does not say, the location as `open_location` gives it and
    None.
    """
    location = open_location(text, token=token)
    if not text.startswith("hf://"):
        return location, None
    source = location.folder.open(location.gguf_file or "config.json")
    commit = getattr(source, "commit", None) or ""
    return (open_location(text, token=token, commit=commit), commit) if _COMMIT.fullmatch(commit) else (location, None)


def _hub(text: str, commit: str | None, endpoint: str | None, token: str | None, budget: Budget) -> Location:
    from paceline_compat.places.http_source import HttpFolder

    try:
        uri = parse_uri(text)
    except UriError as error:
        raise SourceError(text, f"is not {HUB_FORM}") from error
    assert isinstance(uri, HubUri), text
    if not endpoint:
        raise SourceError(text, "has no hub to be read from", f"set {ENDPOINT_VARIABLE} to the hub's address, https://...")
    if not _is_plain(endpoint):
        shown = re.sub("//.*@", "//", endpoint).split("?")[0]
        raise MetadataError(ENDPOINT_VARIABLE, f"{shown!r} is not an http(s) address without query, fragment or user")
    revision = urllib.parse.quote(commit or uri.revision_or_main, safe="")
    base_url = "/".join(filter(None, (endpoint.rstrip("/"), uri.repo, "resolve", revision, uri.folder)))
    name = text.removesuffix(f"/{uri.file_name}") if uri.file_name else text
    return Location(HttpFolder(base_url, name, budget, token), uri.file_name)


def _web(text: str, budget: Budget) -> Location:
    from paceline_compat.places.http_source import HttpFolder

    if not _is_plain(text):
        raise SourceError(text.split("?")[0], "must be a plain address without query, fragment or user")
    base = text.rstrip("/")
    if base.endswith(".gguf"):
        base, _, file = base.rpartition("/")
        return Location(HttpFolder(base, base, budget), urllib.parse.unquote(file))
    return Location(HttpFolder(base, base, budget))


def _is_plain(address: str) -> bool:
    """Whether the address says scheme, host, port and path, and nothing that could be a secret."""
    parts = web_address(address)
    return parts is not None and not (parts.query or parts.fragment)
