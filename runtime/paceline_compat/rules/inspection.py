"""Locations in, verdict out: it reads both checkpoints and applies the table, for the CLI, the webhook and the Job.

What cannot be read becomes a problem too, so callers handle one kind of answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from paceline_compat.errors import MetadataError, SourceError
from paceline_compat.facts.checkpoint import read_draft, read_target
from paceline_compat.facts.records import DraftFacts, TargetFacts
from paceline_compat.places.location import Location
from paceline_compat.rules.pair import Options, Pair
from paceline_compat.rules.table import find_problems
from paceline_compat.rules.verdict import METADATA_INVALID, METADATA_UNAVAILABLE, Problem, Verdict

Facts = TypeVar("Facts", TargetFacts, DraftFacts)


@dataclass(frozen=True)
class Inspection:
    """What was read, and the verdict on it. Facts are None where a checkpoint could not be read, or none was named."""

    target: TargetFacts | None
    draft: DraftFacts | None
    verdict: Verdict


def inspect_pair(target: str | Location, draft: str | Location | None, options: Options | None = None) -> Inspection:
    """Read both checkpoints' headers and judge them. Never raises for a checkpoint that cannot be read."""
    problems: list[Problem] = []
    target_facts = _try(read_target, target, "target", problems)
    draft_facts = None if draft is None else _try(read_draft, draft, "draft", problems)
    if target_facts is not None:
        is_whole = not problems
        options = options or Options()
        judged = options if is_whole else replace(options, algorithm="off", num_drafts=None)
        problems += find_problems(Pair(target_facts, draft_facts, judged))
    names = _name(target), None if draft is None else _name(draft)
    return Inspection(target_facts, draft_facts, Verdict(*names, tuple(problems)))


def check_locations(target: str | Location, draft: str | Location | None, options: Options | None = None) -> Verdict:
    """The verdict of `inspect_pair` alone."""
    return inspect_pair(target, draft, options).verdict


def metadata_problem(role: str, error: MetadataError) -> Problem:
    """A checkpoint that cannot be had, or cannot be trusted, as a problem of `target` or `draft`."""
    reason = METADATA_UNAVAILABLE if isinstance(error, SourceError) else METADATA_INVALID
    return Problem(f"{role}.metadata", reason, role, f"{error.source}: {error.what}", error.remedy)


def _try(read: Callable[[str | Location], Facts], where: str | Location, role: str, problems: list[Problem]) -> Facts | None:
    try:
        return read(where)
    except MetadataError as error:
        problems.append(metadata_problem(role, error))
        return None


def _name(where: str | Location) -> str:
    return where if isinstance(where, str) else where.name
