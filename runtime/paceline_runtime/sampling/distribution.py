"""From logits to the distributions that tokens are drawn from, all parameters per row.

`judge` calls it inside a launch: tensors in, tensors out, nothing read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_kernels.top_logits import top_logits
from paceline_runtime.sampling.row_params import RowParams


@dataclass(frozen=True)
class Distribution:
    """p of rows [...] over K listed ids: `ids` int64 [..., K], `probs` [..., K] (0 where filtered), in float64.

    `is_whole` says that every row lists the whole vocabulary.
    """

    ids: torch.Tensor
    probs: torch.Tensor
    is_whole: bool = False


def distribution(logits: torch.Tensor, params: RowParams) -> Distribution:
    """p of sampled rows [B, W] after temperature, top-k, top-p and min-p; rows of greedy requests are not meaningful.

    Ids are listed likeliest first and ties by id, so what top-k keeps does not depend on how many ids are listed.
    """
    temperature = params.temperature.clamp(min=1e-5)[:, None, None]
    values, ids = _ordered(logits, params.variant.support)
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
    return top_logits(logits, support)
