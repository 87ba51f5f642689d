"""Where a request ends inside a committed run: the earliest of stop token, stop string and `max_tokens`.

Called by the scheduler at every commit. Text, ids, usage, cache commit and acceptance are all cut where this says. Decoding
ids to text is passed in; without stop strings it is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_runtime.messages import FinishReason
from paceline_runtime.sampling import SamplingParams

Decode = Callable[[Sequence[int]], str]
_SPECIAL_TOKENS_SLACK = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep `num_tokens` of the run; `reason` is None while the request goes on."""

    num_tokens: int
    reason: FinishReason | None = None
    stop_text: str | None = None


def stop_tail_tokens(params: SamplingParams) -> int:
    """How many of the last committed tokens `cut_run` needs to see for the stop strings: 0 without any.

    A token is at least one byte of text, except special ones that decode to nothing: as many tokens as the longest stop
    string has bytes, plus slack for those, hold every match that a new token can complete.
    """
    return max(len(stop.encode()) for stop in params.stop) + _SPECIAL_TOKENS_SLACK if params.stop else 0


def cut_run(
    tail: Sequence[int],
    run: Sequence[int],
    params: SamplingParams,
    max_tokens: int,
    eos_ids: frozenset[int],
    decode: Decode | None,
) -> Cut:
    """Cut `run`, which follows the committed outputs that end in `tail` and may be followed by `max_tokens` more.

    A stop and the last allowed token on the same place count as a stop.
    """
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
    for index, token in enumerate(run):
        if token in stop_ids:
            return Cut(index + 1, "stop")
        if params.stop:
            assert decode is not None, "stop strings need a tokenizer"
            found = _completed_stop([*tail, *run[: index + 1]], params.stop, decode)
            if found is not None:
                return Cut(index + 1, "stop", found)
        if index + 1 >= max_tokens:
            return Cut(index + 1, "length")
    return Cut(len(run))


def _completed_stop(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> str | None:
    """The stop string in the text of `ids`: the one that begins first, the longer one on a tie.

    Only the last of `ids` can have completed one, or the request would have ended before.
    """
    text = decode(ids)
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    return min(found)[2] if found else None
