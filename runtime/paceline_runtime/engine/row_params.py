"""The sampling parameters of a batch's requests, uploaded. Called by the executor inside a launch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from paceline_runtime.engine.transfer import upload
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.row_params import RowParams

_SMALL_TOP_K = 64
"""Up to this top-k the vocabulary is not sorted: p is supported on so few ids that they are picked directly."""


def row_params(
    params: Sequence[SamplingParams], keys: Sequence[int], prompt_lengths: Sequence[int], device: torch.device
) -> RowParams:
    """Upload the parameters of a batch's rows."""

    def floats(name: str) -> torch.Tensor:
        return upload([getattr(p, name) for p in params], torch.float64, device)

    sampled = [p for p in params if not p.is_greedy]
    limits = [p.top_k for p in sampled]
    penalized = any(p.has_penalties for p in params)
    logprobs = [p.logprobs for p in params if p.logprobs is not None]
    return RowParams(
        keys=upload(list(keys), torch.int64, device),
        temperature=floats("temperature"),
        top_k=upload([p.top_k for p in params], torch.int64, device),
        top_p=floats("top_p"),
        min_p=floats("min_p"),
        greedy=upload([p.is_greedy for p in params], torch.bool, device),
        prompt_lengths=upload(list(prompt_lengths), torch.int64, device),
        presence=floats("presence_penalty") if penalized else None,
        frequency=floats("frequency_penalty") if penalized else None,
        repetition=floats("repetition_penalty") if penalized else None,
        bias=_bias(params, device),
        bias_ends=tuple(accumulate(len(p.logit_bias) for p in params)),
        any_sampled=bool(sampled),
        support=max(limits) if limits and min(limits) > 0 and max(limits) <= _SMALL_TOP_K else 0,
        num_logprobs=max(logprobs) if logprobs else None,
    )


def _bias(params: Sequence[SamplingParams], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    entries = [(row, token, value) for row, p in enumerate(params) for token, value in p.logit_bias.items()]
    if not entries:
        return None
    rows, tokens, values = zip(*entries, strict=True)
    return (
        upload(rows, torch.int64, device),
        upload(tokens, torch.int64, device),
        upload(values, torch.float64, device),
    )
