"""What the runtime can tell a user that went wrong.

    PacelineError
    ├── ConfigError         flags, files or memory do not allow a start; the CLI prints it without a traceback
    ├── RequestError        one HTTP request is wrong: a 4xx in OpenAI's shape, with every problem at once
    └── UnavailableError    the request is fine, the server cannot take it now: 503
        └── EngineDiedError     and never will again

`server/http/app.py` maps them to HTTP in one place, `cli.py` to exit codes. It knows neither HTTP nor argparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class PacelineError(Exception):
    """Base of all errors that are meant to be read by a user."""


class ConfigError(PacelineError):
    """A start that cannot succeed. `problems` holds one sentence each, with the remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a request: the field, what is wrong with it and how to mend it, OpenAI's error code."""

    param: str | None
    message: str
    code: str = "invalid_value"


class RequestError(PacelineError):
    """A request that must not run. `status` is the HTTP status; `problems` is never empty."""

    def __init__(self, problems: Sequence[Problem], status: int = 400) -> None:
        super().__init__("; ".join(problem.message for problem in problems))
        self.problems = tuple(problems)
        self.status = status


class UnavailableError(PacelineError):
    """Loading or draining: the same request may succeed on a retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDiedError(UnavailableError):
    """The engine process is gone; the server is about to exit, another replica may answer."""
