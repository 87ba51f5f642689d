"""Where a request ends inside a committed run: the earliest of stop token, stop string and `max_tokens`.

The scheduler calls it at every commit. Text, ids, usage, cache commit and acceptance are all cut where this module says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_runtime.messages import FinishReason
from paceline_runtime.params import SamplingParams
from paceline_runtime.text.stream import TextStream


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep `num_tokens` of the run; `reason` is None while the request goes on."""

    num_tokens: int
    reason: FinishReason | None = None
    stop_text: str | None = None


def cut_run(
    run: Sequence[int], params: SamplingParams, max_tokens: int, eos_ids: frozenset[int], text: TextStream | None
) -> Cut:
    """Cut `run`, which may be followed by tokens up to `max_tokens` in all.

    `text` is the answer so far, for requests with stop strings; it is moved on by the tokens that are kept. A stop and the
    last allowed token on the same place count as a stop.
    """
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
    for index, token in enumerate(run):
        if token in stop_ids:
            return Cut(index + 1, "stop")
        if text is not None:
            text.push(token)
            if text.stop is not None:
                return Cut(index + 1, "stop", text.stop)
        if index + 1 >= max_tokens:
            return Cut(index + 1, "length")
    return Cut(len(run))
