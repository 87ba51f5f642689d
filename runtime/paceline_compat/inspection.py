"""Locations in, verdict out: reads both checkpoints and applies the table. For the CLI, the webhook and the Job.

What cannot be read becomes a problem too, so callers handle one kind of answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .checkpoint import read_draft, read_target
from .errors import MetadataError, SourceError
from .facts import DraftFacts, TargetFacts
from .location import Location
from .pair import Options
from .rules import check
from .verdict import METADATA_INVALID, METADATA_UNAVAILABLE, Problem, Verdict

Facts = TypeVar("Facts", TargetFacts, DraftFacts)


def check_locations(target: str | Location, draft: str | Location | None, options: Options | None = None) -> Verdict:
    """Check a pair by location. Never raises for a checkpoint that cannot be read: the verdict says so."""
    problems: list[Problem] = []
    target_facts = _try(read_target, target, "target", problems)
    draft_facts = None if draft is None else _try(read_draft, draft, "draft", problems)
    if target_facts is None or problems:
        return Verdict(_name(target), None if draft is None else _name(draft), tuple(problems))
    return check(target_facts, draft_facts, options)


def _try(read: Callable[[str | Location], Facts], where: str | Location, role: str, problems: list[Problem]) -> Facts | None:
    try:
        return read(where)
    except MetadataError as error:
        reason = METADATA_UNAVAILABLE if isinstance(error, SourceError) else METADATA_INVALID
        what = f"{error.source}: {error.what}"
        problems.append(Problem(f"{role}.metadata", reason, role, what, error.remedy))
        return None


def _name(where: str | Location) -> str:
    return where if isinstance(where, str) else where.name
