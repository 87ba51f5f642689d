"""What a caller may ask of one request's decoding. The server parses it, a plan carries it, the device keeps it by seat.

It knows no torch and no wire format; validation names every bad field at once.
"""

from __future__ import annotations

import msgspec

from paceline_compat.memory.buffers import BIASES_PER_SEAT

MAX_LOGIT_BIAS = BIASES_PER_SEAT
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 512
MAX_STOP_TOKEN_IDS = 1024
LARGEST_LOGIT_BIAS = 1e30
"""Such a bias forces or forbids a token whatever its logit, and remains a float32 when the logit is added."""
MAX_TOP_K = 2**31 - 1
MAX_TOP_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Per-request decoding parameters.

    `temperature` 0 is greedy; so is `top_k` 1, whatever `top_p` says. `top_k` 0 means no limit. `max_tokens` None means
    whatever the context still holds. `logprobs` is the number of alternatives per token, None for no logprobs at all.
    Filters apply in this order: bias and penalties, temperature, top-k, top-p, min-p.
    """

    max_tokens: int | None = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the argmax of the penalized logits."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether the logits of a row depend on the tokens before it."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def problems(self, vocab_size: int | None = None) -> list[tuple[str, str]]:
        """Everything wrong with the values, as (field, message with the remedy); empty when valid."""
        found = [(name, message) for name, ok, message in self._checks() if not ok]
        if vocab_size is not None:
            for name, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
                outside = next((token for token in ids if not 0 <= token < vocab_size), None)
                if outside is not None:
                    found.append((name, f"token id {outside} is outside the vocabulary of {vocab_size}"))
        return found

    def _checks(self) -> list[tuple[str, bool, str]]:
        def between(name: str, low: float, high: float) -> tuple[str, bool, str]:
            value = getattr(self, name)
            return name, low <= value <= high, f"must be between {low:g} and {high:g}, got {value!r}"

        empty = next((at for at, text in enumerate(self.stop) if not text), None)
        long = next((at for at, text in enumerate(self.stop) if len(text) > MAX_STOP_STRING_CHARS), None)
        return [
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "must be at least 1"),
            between("temperature", 0.0, 100.0),
            ("top_k", 0 <= self.top_k <= MAX_TOP_K, f"must be 0 (no limit) or positive, and at most {MAX_TOP_K}"),
            ("top_p", 0.0 < self.top_p <= 1.0, f"must be above 0 and at most 1, got {self.top_p!r}"),
            between("min_p", 0.0, 1.0),
            between("presence_penalty", -2.0, 2.0),
            between("frequency_penalty", -2.0, 2.0),
            between("repetition_penalty", 0.01, 10.0),  # the logits are divided by the temperature, in float32
            ("stop_token_ids", len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS, f"holds more than {MAX_STOP_TOKEN_IDS} tokens"),
            ("logit_bias", len(self.logit_bias) <= MAX_LOGIT_BIAS, f"holds more than {MAX_LOGIT_BIAS} tokens"),
            (
                "logit_bias",
                all(abs(bias) <= LARGEST_LOGIT_BIAS for bias in self.logit_bias.values()),
                f"must hold numbers between -{LARGEST_LOGIT_BIAS:g} and {LARGEST_LOGIT_BIAS:g}",
            ),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "must fit in 64 bits"),
            ("stop", len(self.stop) <= MAX_STOP_STRINGS, f"holds more than {MAX_STOP_STRINGS} strings"),
            ("stop", not isinstance(self.stop, str), "must be a list or tuple of strings, not one string"),
            ("stop", empty is None, f"must not hold an empty string, as item {empty} is"),
            ("stop", long is None, f"must hold no string of more than {MAX_STOP_STRING_CHARS} characters, as item {long} is"),
            (
                "logprobs",
                self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
                f"must be between 0 and {MAX_TOP_LOGPROBS}",
            ),
        ]
