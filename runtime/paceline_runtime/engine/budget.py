"""How many prompt tokens a step may prefill beside its decoding requests, so that a long prompt never starves them.

The engine asks it, and tells it how long steps took. It knows no request and reads no clock.
"""

from __future__ import annotations

from paceline_compat.memory.parts import PAGE_TOKENS

_MEMORY = 0.8
"""Weight of the past in the running means: about five steps."""


class PrefillBudget:
    """A budget of `max_tokens` per step, shrunk while others decode to what takes about one decode step.

    What one step may not spend is saved: when a decode step is worth less than a page of prefill, a page is prefilled every
    few steps, and the decoding requests' mean time between tokens stays within `slowdown`. It begins with one page and at
    most doubles: a token's cost grows with its context, and a guess from short prompts would be far too cheap for it.
    """

    def __init__(self, max_tokens: int, *, slowdown: float = 1.9, fixed_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self._share = slowdown - 1.0
        self._fixed = fixed_tokens
        self.forget()

    def forget(self) -> None:
        """Begin anew: what the warm-up took says nothing, since it loads and compiles kernels."""
        self._decode_s = 0.0
        self._token_s = 0.0
        self._credit = 0.0
        self._last_taken = 0

    def take(self, *, num_decoding: int, has_prompts: bool) -> int:
        """Tokens the next step may prefill."""
        if not num_decoding or not has_prompts:
            self._last_taken = 0
            return self.max_tokens
        if self._fixed is not None:
            return self._fixed
        if not self._decode_s or not self._token_s:
            return PAGE_TOKENS
        most = min(max(2 * self._last_taken, PAGE_TOKENS), self.max_tokens)
        self._credit = min(self._credit + self._share * self._decode_s / self._token_s, float(most + PAGE_TOKENS))
        return min(int(self._credit) // PAGE_TOKENS * PAGE_TOKENS, most)

    def spent(self, num_tokens: int) -> None:
        """A step with decoding requests was given `num_tokens` of prefill."""
        self._credit = max(0.0, self._credit - num_tokens)
        self._last_taken = num_tokens

    def measured(self, seconds: float, *, num_decoding: int, num_prefill_tokens: int) -> None:
        """A step took `seconds` from its launch, or from the results before it, to its results."""
        if num_decoding and not num_prefill_tokens:
            self._decode_s = _mean(self._decode_s, seconds)
        elif num_prefill_tokens:
            # Fewer tokens than a page take as long as one: by the token, a short prompt would make a long one look endless.
            num_worth = max(num_prefill_tokens, PAGE_TOKENS)
            cost = max(seconds - (self._decode_s if num_decoding else 0.0), 0.0) / num_worth
            self._token_s = max(cost, _mean(self._token_s, cost))


def _mean(past: float, now: float) -> float:
    return _MEMORY * past + (1.0 - _MEMORY) * now if past else now
