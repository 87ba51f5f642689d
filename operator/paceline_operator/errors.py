"""What can go wrong in the operator, and what is done about it.

    OperatorError
    ├── ConfigError      the operator's own environment is wrong: it does not start
    ├── SpecError        a resource is wrong: condition Accepted says so, nothing is retried
    ├── NameTakenError   a child's name belongs to someone else: condition Progressing says so, retried slowly
    └── ApiError         the API server refused or did not answer: retried with backoff
        └── GoneError    the object is not there (any more)

Problems are values: validation collects all of them before anything is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a resource: `path` is the field (`spec.draft.uri`), `message` says what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def join(problems: Sequence[Problem]) -> str:
    """All problems as one message."""
    return "; ".join(str(problem) for problem in problems)


class OperatorError(Exception):
    """Base of all errors that the operator raises itself."""


class ConfigError(OperatorError):
    """The operator's environment is wrong; lists every wrong variable."""


class SpecError(OperatorError):
    """The operator cannot act on a SpeculativeModel."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(join(problems))
        self.problems = tuple(problems)


class NameTakenError(OperatorError):
    """An object of a child's name exists and is not the model's own; the operator leaves that object alone."""

    def __init__(self, kind: str, name: str, why: str) -> None:
        super().__init__(f"{kind} {name} {why}")


class ApiError(OperatorError):
    """The API server answered with an error; status 0 means it could not be reached."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status, self.retry_after_s = status, retry_after_s


class GoneError(ApiError):
    """404: the object is not there."""
