"""What the engine counts over its life, as plain integers. `/metrics`, usage and the bench read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline_runtime.scheduler.scheduler import Commit


@dataclass
class Counters:
    """Totals since start; a position is a draft's place in its block, 0 for the first."""

    num_drafts: int
    prompt_tokens: int = 0
    generated_tokens: int = 0
    verify_steps: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drafted = [0] * self.num_drafts
        self.accepted = [0] * self.num_drafts

    def admitted(self, num_prompt: int, num_cached: int) -> None:
        """A request started for the first time."""
        self.prompt_tokens += num_prompt
        self.prefix_query_tokens += num_prompt
        self.prefix_hit_tokens += num_cached

    def committed(self, commit: Commit) -> tuple[int, int]:
        """Count one row's step; returns its (drafted, accepted), accepted cut where the request ended."""
        self.generated_tokens += len(commit.token_ids)
        if not commit.is_verify:
            return 0, 0
        self.verify_steps += 1
        accepted = min(len(commit.token_ids), len(commit.result.token_ids) - 1)
        for position in range(commit.result.num_drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < accepted
        return commit.result.num_drafted, accepted
