"""Bias and penalties: what changes the logits before a token is chosen, all parameters per row.

`judge` calls it inside a launch: tensors in, tensors out, nothing read back.
"""

from __future__ import annotations

import torch

from paceline_runtime.sampling.row_params import RowParams


def adjust_logits(
    logits: torch.Tensor, params: RowParams, history: torch.Tensor, lengths: torch.Tensor, drafts: torch.Tensor
) -> torch.Tensor:
    """Logits [B, W, V] with bias and penalties; row j counts the tokens up to the pending one and the drafts 1..j before it.

    history int64 [B, L]: committed ids, of which positions 0..lengths[b] count (the pending token is the last);
    drafts int64 [B, W - 1]. The order is the usual one: repetition (Keskar 2019), then presence and frequency, then bias.
    """
    if params.variant.has_penalties:
        outputs, seen = _token_counts(logits, params, history, lengths, drafts)
        factor = params.repetition[:, None, None].to(logits.dtype)
        repeated = torch.where(logits > 0, logits / factor, logits * factor)
        logits = torch.where(seen, repeated, logits)
        logits = logits - params.frequency[:, None, None].to(logits.dtype) * outputs
        logits = logits - params.presence[:, None, None].to(logits.dtype) * (outputs > 0)
    if params.variant.num_biases:
        dense = torch.zeros((logits.shape[0], logits.shape[2]), dtype=logits.dtype, device=logits.device)
        dense.scatter_add_(1, params.bias_ids, params.bias_values.to(logits.dtype))
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
