"""From logits to the distributions that tokens are drawn from, all parameters per row.

Called by the executor inside a launch: tensors in, tensors out, nothing read back. What the host knows about a batch (is any
row sampled, is there a bound on top-k) picks the path, never what a row gets: a row's tokens are the same in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import torch

from paceline_runtime.engine.transfer import upload
from paceline_runtime.sampling import SamplingParams

_SMALL_TOP_K = 64
"""Up to this top-k the vocabulary is not sorted: p is supported on so few ids that they are picked directly."""


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of B rows on the device, and what the host knows of them.

    keys int64 [B]; temperature, top_p, min_p float64 [B]; top_k int64 [B] (0: no limit); greedy bool [B];
    presence, frequency, repetition float64 [B] or None when no row has penalties; prompt_lengths int64 [B];
    bias: (row [M], token [M], value [M]) in the order of rows, or None; bias_ends: how many entries there are up to each row.
    `support` bounds the ids that p of any sampled row is supported on, 0: none.
    """

    keys: torch.Tensor
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    greedy: torch.Tensor
    prompt_lengths: torch.Tensor
    presence: torch.Tensor | None
    frequency: torch.Tensor | None
    repetition: torch.Tensor | None
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    bias_ends: tuple[int, ...]
    any_sampled: bool
    support: int
    num_logprobs: int | None

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits are changed before a token is chosen."""
        return self.presence is not None or self.bias is not None

    def part(self, start: int, end: int) -> RowParams:
        """The rows from `start` to before `end`; what the host knows stays what it knows of all."""
        tensors = {f.name: getattr(self, f.name)[start:end] for f in fields(self) if torch.is_tensor(getattr(self, f.name))}
        first, last = self.bias_ends[start - 1] if start else 0, self.bias_ends[end - 1]
        bias = None
        if self.bias is not None:
            rows, tokens, values = (entries[first:last] for entries in self.bias)
            bias = rows - start, tokens, values
        return replace(self, **tensors, bias=bias, bias_ends=tuple(e - first for e in self.bias_ends[start:end]))


@dataclass(frozen=True)
class Distribution:
    """p of rows [...] over K listed ids: `ids` int64 [..., K], `probs` [..., K] (0 where filtered), in float64.

    `is_whole` says that every row lists the whole vocabulary.
    """

    ids: torch.Tensor
    probs: torch.Tensor
    is_whole: bool = False


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


def adjust_logits(
    logits: torch.Tensor, params: RowParams, history: torch.Tensor, lengths: torch.Tensor, drafts: torch.Tensor
) -> torch.Tensor:
    """Logits [B, W, V] with bias and penalties; row j counts the tokens up to the pending one and the drafts 1..j before it.

    history int64 [B, L]: committed ids, of which positions 0..lengths[b] count (the pending token is the last);
    drafts int64 [B, W - 1]. The order is the usual one: repetition (Keskar 2019), then presence and frequency, then bias.
    """
    if params.presence is not None:
        assert params.frequency is not None
        assert params.repetition is not None
        outputs, seen = _token_counts(logits, params, history, lengths, drafts)
        factor = params.repetition[:, None, None].to(logits.dtype)
        repeated = torch.where(logits > 0, logits / factor, logits * factor)
        logits = torch.where(seen, repeated, logits)
        logits = logits - params.frequency[:, None, None].to(logits.dtype) * outputs
        logits = logits - params.presence[:, None, None].to(logits.dtype) * (outputs > 0)
    if params.bias is not None:
        rows, tokens, values = params.bias
        dense = torch.zeros((logits.shape[0], logits.shape[2]), dtype=logits.dtype, device=logits.device)
        dense.index_put_((rows, tokens), values.to(logits.dtype))
        logits = logits + dense[:, None]
    return logits


def _token_counts(
    logits: torch.Tensor, params: RowParams, history: torch.Tensor, lengths: torch.Tensor, drafts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output counts [B, W, V] and whether a token was seen in prompt or output, per verify row."""
    batch, width, vocab = logits.shape
    columns = torch.arange(history.shape[1], device=history.device)
    committed = columns <= lengths[:, None]
    is_output = committed & (columns >= params.prompt_lengths[:, None])
    zeros = torch.zeros((batch, vocab), dtype=logits.dtype, device=logits.device)
    outputs = zeros.scatter_add(1, history, is_output.to(logits.dtype))
    everything = zeros.scatter_add(1, history, committed.to(logits.dtype))
    drafted = torch.zeros_like(logits)
    if width > 1:
        drafted[:, 1:].scatter_(2, drafts[:, :, None], 1.0)
        drafted = drafted.cumsum(1)
    return outputs[:, None] + drafted, everything[:, None] + drafted > 0


def distribution(logits: torch.Tensor, params: RowParams) -> Distribution:
    """p of sampled rows [B, W] after temperature, top-k, top-p and min-p; rows of greedy requests are not meaningful.

    Ids are listed likeliest first and ties by id, so what top-k keeps does not depend on how many ids are listed.
    """
    temperature = params.temperature.clamp(min=1e-5)[:, None, None]
    values, ids = _ordered(logits, params.support)
    probs = torch.softmax(_mask_top_k(values.to(torch.float64).div_(temperature), params.top_k), dim=-1)
    before = probs.cumsum(-1).sub_(probs)
    keep = (before < params.top_p[:, None, None]) & (probs >= params.min_p[:, None, None] * probs[..., :1])
    probs.masked_fill_(~keep, 0.0)
    return Distribution(ids, probs.div_(probs.sum(-1, keepdim=True)), is_whole=ids.shape[-1] == logits.shape[-1])


def _mask_top_k(scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    rank = torch.arange(scaled.shape[-1], device=scaled.device)
    limit = torch.where(top_k > 0, top_k, scaled.shape[-1])[:, None, None]
    return scaled.masked_fill_(rank >= limit, -torch.inf)


def _ordered(logits: torch.Tensor, support: int) -> tuple[torch.Tensor, torch.Tensor]:
    if not 0 < support < logits.shape[-1]:
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    if logits.dtype == torch.float64:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        return values[..., :support], ids[..., :support]
    _, ids = torch.topk(_tie_breaking_keys(logits), support, dim=-1)
    return logits.gather(-1, ids), ids


def _tie_breaking_keys(logits: torch.Tensor) -> torch.Tensor:
    """int64 keys that order as (logit descending, id ascending): `torch.topk` leaves the order of ties open."""
    bits = logits.to(torch.float32).view(torch.int32).to(torch.int64)
    ordered = torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))
    vocab = logits.shape[-1]
    return (ordered << 32) + torch.arange(vocab - 1, -1, -1, device=logits.device)
