"""A compatibility verdict in the resource's own words: which fields of the spec it is about, and what follows.

Admission and the inspect Job use it, so both say the same thing about the same pair. The module reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_compat import Options, Verdict
from paceline_compat import Problem as Broken
from paceline_compat.rules.verdict import METADATA_UNAVAILABLE
from paceline_operator.errors import Problem, join
from paceline_operator.gates.inspection import COMPATIBLE, INCOMPATIBLE, UNKNOWN
from paceline_operator.spec.model import Model

# An option of the table of rules -> the field that a user changes.
OPTION_FIELDS = {
    "options.algorithm": "spec.speculation.algorithm",
    "options.num_steps": "spec.speculation.numSteps",
    "options.tensor_parallel": "spec.resources.gpu.count",
    "options.max_model_len": "spec.runtime.args",
    "options.cache_type": "spec.runtime.args",
}


@dataclass(frozen=True)
class Judgement:
    """`outcome` is one of `inspection`'s. The `problems` decide the outcome; the `warnings` do not."""

    outcome: str
    reason: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def message(self) -> str:
        return join((*self.problems, *self.warnings)) or "the runtime serves what the headers describe"


def options_of(model: Model) -> Options:
    """What the table of rules has to know of the spec besides the checkpoints."""
    spec = model.spec
    return Options(
        algorithm=spec.speculation.algorithm,
        num_drafts=spec.speculation.depth,
        tensor_parallel=max(1, spec.resources.gpu.count),
    )


def judge(verdict: Verdict) -> Judgement:
    """The judgement on a verdict. A broken rule beats unreadable metadata: such a draft is refused whatever the rest says."""
    warnings = tuple(_problem(broken) for broken in verdict.warnings)
    known = [broken for broken in verdict.errors if broken.reason != METADATA_UNAVAILABLE]
    if known:
        return Judgement(INCOMPATIBLE, known[0].reason, _problems(known), warnings)
    if verdict.errors:
        return Judgement(UNKNOWN, METADATA_UNAVAILABLE, _problems(verdict.errors), warnings)
    return Judgement(COMPATIBLE, "Compatible", (), warnings)


def _problems(broken: Sequence[Broken]) -> tuple[Problem, ...]:
    return tuple(_problem(one) for one in broken)


def _problem(broken: Broken) -> Problem:
    message = f"{broken.message}; {broken.remedy}" if broken.remedy else broken.message
    return Problem(field_of(broken.field), message)


def field_of(fact: str) -> str:
    """The spec's field behind a fact. Whatever is wrong with a checkpoint, a user changes its uri."""
    role = fact.partition(".")[0]
    if role in ("target", "draft"):
        return f"spec.{role}.uri"
    return OPTION_FIELDS.get(fact, "spec.speculation")
