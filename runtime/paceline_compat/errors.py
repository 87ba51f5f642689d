"""What a checkpoint's metadata can do wrong. Every reader here raises these errors; rules never raise, they return problems."""

from __future__ import annotations


class MetadataError(ValueError):
    """A header or config that cannot be trusted, naming the file, what in it is wrong, and what to do."""

    def __init__(self, source: str, what: str, remedy: str = "") -> None:
        super().__init__(f"{source}: {what}" + (f" ({remedy})" if remedy else ""))
        self.source, self.what, self.remedy = source, what, remedy


class SourceError(MetadataError):
    """Bytes that could not be had: no such file, no permission, no answer in time, a budget spent."""


class MissingFileError(SourceError):
    """The place answers, and the named file is not there."""
