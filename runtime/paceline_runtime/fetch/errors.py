"""What a fetch can end with. Each error carries the exit code that a Job or a shell script reads.

    FetchError
    ├── RequestError      2    URI, flags or environment are wrong
    ├── RefusedError      3    the source has no such thing, or does not give it to us
    ├── IntegrityError    4    what came is not what was announced, or must not be written
    ├── FolderError       5    the folder cannot take it: space, permission
    ├── UnavailableError  6    the source could not be reached in spite of retries; trying again may help
    └── InterruptedFetch  130  SIGTERM or SIGINT; the next call resumes

`TransientError` never leaves the package: a retry loop catches it.
"""

from typing import ClassVar

EXIT_OK = 0
EXIT_REQUEST = 2
EXIT_REFUSED = 3
EXIT_INTEGRITY = 4
EXIT_FOLDER = 5
EXIT_UNAVAILABLE = 6
EXIT_INTERRUPTED = 130


class FetchError(Exception):
    """A fetch that did not complete; its text is one line for the user and holds no secret."""

    exit_code: ClassVar[int]


class RequestError(FetchError):
    """The caller must change something: URI, flag, environment variable."""

    exit_code = EXIT_REQUEST


class RefusedError(FetchError):
    """The source answered no (401, 403, 404 and other client errors)."""

    exit_code = EXIT_REFUSED


class IntegrityError(FetchError):
    """Digest, size or name is not acceptable."""

    exit_code = EXIT_INTEGRITY


class FolderError(FetchError):
    """The local folder is the problem."""

    exit_code = EXIT_FOLDER


class UnavailableError(FetchError):
    """No answer, or only 429 and 5xx, until the retries were spent."""

    exit_code = EXIT_UNAVAILABLE


class InterruptedFetch(FetchError):  # noqa: N818 - an interruption is not an error of anybody's
    """The fetch was asked to stop; what has arrived stays as `.partial` files."""

    exit_code = EXIT_INTERRUPTED


class TransientError(Exception):
    """One failed attempt. `retry_after_s` is what the server asked us to wait, if it did."""

    def __init__(self, what: str, retry_after_s: float | None = None) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s
