"""What a check found: problems with stable names, for a terminal, for JSON and for a Kubernetes condition."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

METADATA_UNAVAILABLE = "MetadataUnavailable"
METADATA_INVALID = "MetadataInvalid"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule.

    `rule` is the row's id (`draft.vocab_size`), `reason` a CamelCase condition reason, `field` the fact or option that the
    problem is about (`target.*`, `draft.*`, `options.*`). A warning does not keep a pair from being served.
    """

    rule: str
    reason: str
    field: str
    message: str
    remedy: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """All problems of one pair. `fits` when none is an error; warnings ride along."""

    target: str
    draft: str | None
    problems: tuple[Problem, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if not p.is_warning)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(p for p in self.problems if p.is_warning)

    @property
    def is_readable(self) -> bool:
        """False when a checkpoint's metadata could not be had or trusted, so that the rules never ran."""
        return not any(p.reason in (METADATA_UNAVAILABLE, METADATA_INVALID) for p in self.problems)

    @property
    def reason(self) -> str:
        """A condition's reason: the first error's, or `Compatible`."""
        return self.errors[0].reason if self.errors else "Compatible"

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `paceline check --json` and of the inspect Job's termination message."""
        return {
            "target": self.target,
            "draft": self.draft,
            "fits": self.fits,
            "readable": self.is_readable,
            "reason": self.reason,
            "problems": [asdict(problem) for problem in self.problems],
        }

    def to_text(self) -> str:
        """Lines for a terminal, every problem with its remedy."""
        pair = self.target if self.draft is None else f"{self.draft} on {self.target}"
        head = f"{pair}: {'fits' if self.fits else 'does not fit' if self.is_readable else 'cannot be read'}"
        lines = [f"  {'warning' if p.is_warning else 'error'}: {p} [{p.rule}]" for p in self.problems]
        return "\n".join([head, *lines])
