"""Names that come from elsewhere, made safe before anything is written under them."""

from pathlib import Path, PurePosixPath

from paceline_runtime.fetch.errors import IntegrityError

PARTIAL_SUFFIX = ".partial"
RESERVED_PREFIX = ".paceline-fetch"
_MAX_NAME_BYTES = 200  # leaves room for identity and suffix within the 255 bytes of common file systems


def safe_path(name: str) -> str:
    """The name as a relative POSIX path that stays in its folder; IntegrityError for anything else."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable():
        raise IntegrityError(f"the source names a file {name!r}, which is not a plain relative path; nothing was written")
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts):
        raise IntegrityError(f"the source names a file with more than {_MAX_NAME_BYTES} bytes: {name[:80]!r}...")
    if is_ours(name):
        raise IntegrityError(f"the source names a file {name!r}, a name that this program uses itself")
    return name


def is_ours(name: str) -> bool:
    """Whether the name is a fetch's own bookkeeping; a source has such names where a fetched folder was uploaded whole."""
    return name.endswith(PARTIAL_SUFFIX) or name.startswith(RESERVED_PREFIX)


def inside(folder: Path, path: str) -> Path:
    """`folder/path` with its parents made, refused when a link in the folder would lead it outside."""
    target = folder / PurePosixPath(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise IntegrityError(f"{path}: a link in {folder} leads outside of it; nothing was written there")
    return target
