"""What a rule looks at: a target, perhaps a draft, and the options that both are to run under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paceline_compat.facts.records import DraftFacts, TargetFacts

ALGORITHMS = ("off", "ngram", "mtp", "dflash")
CACHE_TYPES = ("prefix", "naive")
DEFAULT_NUM_DRAFTS = {"ngram": 3, "mtp": 3}
MAX_NUM_DRAFTS = {"ngram": 31, "mtp": 7, "dflash": 31}
"""Deepest draft: a ring has 64 spare rows and a step reserves 2 (1 + k). A dflash draft's block size may allow fewer, and an
MTP head, which runs once for each token, was never deeper."""


class Finding(NamedTuple):
    """What one rule has to say; the table adds the id and the reason."""

    field: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The serving options that rules depend on. None stands for the default: the draft's or the target's own value."""

    algorithm: str = "dflash"
    num_drafts: int | None = None
    max_model_len: int | None = None
    cache_type: str = "prefix"
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """The argument of every rule. Rules about the options alone are also asked where no checkpoint can be read."""

    maybe_target: TargetFacts | None
    maybe_draft: DraftFacts | None
    options: Options

    @property
    def target(self) -> TargetFacts:
        """The target, for rules that look at one."""
        assert self.maybe_target is not None
        return self.maybe_target

    @property
    def draft(self) -> DraftFacts:
        """The draft, for rules that apply only where there is one."""
        assert self.maybe_draft is not None
        return self.maybe_draft

    @property
    def max_model_len(self) -> int:
        """The longest context asked for, in tokens."""
        return self.options.max_model_len or self.target.max_positions


def default_num_drafts(algorithm: str, draft: DraftFacts | None) -> int:
    """k where none was given: block_size - 1 for dflash, 3 for mtp and ngram, 0 for off."""
    if algorithm == "dflash" and draft is not None and draft.block_size is not None:
        return max(0, draft.block_size - 1)
    return DEFAULT_NUM_DRAFTS.get(algorithm, 0)
