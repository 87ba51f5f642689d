"""How many pages requests need, and whether they can be had: the arithmetic behind admission, chunks and decode steps.

The scheduler uses it and decides who gets them. Lengths are upper bounds of what any step in flight could write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_compat.memory.parts import PAGE_TOKENS, pages_for
from paceline_runtime.scheduler.pages import PagePool
from paceline_runtime.scheduler.prefix import Node, PrefixCache
from paceline_runtime.scheduler.request import Phase, Request


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes the policy works with; `max_steps_in_flight` is 1 + the engine's lag.

    `num_state_slots` counts recurrent-state slots, dummy included; 0 for targets without such state.
    """

    num_pages: int
    max_running: int
    max_model_len: int
    num_drafts: int
    max_steps_in_flight: int = 1
    num_state_slots: int = 0
    use_prefix_cache: bool = True
    eos_ids: frozenset[int] = frozenset()


class Room:
    """The pages of one scheduler, free ones and those of the prefix cache that nobody uses."""

    def __init__(self, config: SchedulerConfig, pages: PagePool, prefix: PrefixCache) -> None:
        self._config = config
        self._pages = pages
        self._prefix = prefix

    def refusal(self, num_prompt: int, max_tokens: int | None) -> str | None:
        """Why a request of this size can never run, with the remedy; None when it can."""
        limit = self._config.max_model_len
        if num_prompt < 1:
            return "the prompt is empty; send at least one token"
        if num_prompt >= limit:
            return f"the prompt has {num_prompt} tokens, but the context holds {limit}, one of them for the answer"
        total = num_prompt + (max_tokens or 1)
        if total > limit:
            return (
                f"{num_prompt} prompt tokens and max_tokens {max_tokens} make {total}, but the context holds {limit}; "
                f"ask for at most {limit - num_prompt} tokens"
            )
        needed, have = self._pages_at_most(total), self._config.num_pages - 1
        if needed > have:
            return (
                f"{total} tokens need {needed} pages of {PAGE_TOKENS} tokens, but the cache has {have}; "
                "ask for fewer tokens, or start the server with more memory for the cache (--memory-ratio, --num-pages)"
            )
        return None

    def fits(self, request: Request, hit: Sequence[Node], running: Sequence[Request]) -> bool:
        """Whether the whole prompt and a first step fit beside what running prompts still need; else it would be preempted."""
        available = self._pages.num_free + self._prefix.num_unused - sum(not node.num_refs for node in hit)
        promised = sum(
            max(0, pages_for(other.num_to_prefill) - len(other.pages)) for other in running if other.phase is Phase.PREFILL
        )
        needed = pages_for(min(request.num_to_prefill + 1 + self._config.num_drafts, self._config.max_model_len))
        return needed - len(hit) + promised <= available

    def _pages_at_most(self, total_tokens: int) -> int:
        """Pages a request of `total_tokens` may hold at once, with what its steps in flight could write."""
        ahead = self._config.max_steps_in_flight * (1 + self._config.num_drafts)
        return pages_for(min(total_tokens + ahead, self._config.max_model_len))

    def decode_upper(self, request: Request) -> int:
        """Tokens that may be in the cache once the next decode step has run."""
        ahead = (request.num_in_flight + 1) * (1 + self._config.num_drafts)
        return min(request.num_computed + ahead, self._config.max_model_len)

    def affordable_end(self, request: Request) -> int:
        """Tokens that its pages, the free ones and those nobody uses can hold."""
        return (len(request.pages) + self._pages.num_free + self._prefix.num_unused) * PAGE_TOKENS

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Make the request's pages hold `num_tokens`, evicting what nobody uses; False (nothing taken) when impossible."""
        missing = pages_for(num_tokens) - len(request.pages)
        if missing > self._pages.num_free:
            self._prefix.evict(missing - self._pages.num_free)
        if missing > self._pages.num_free:
            return False
        if missing > 0:
            request.pages += self._pages.take(missing)
        return True
