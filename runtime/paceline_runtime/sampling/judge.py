"""From the logits of a verify to its verdict, a few requests at a time.

Called by the executor inside a launch: nothing is read back. Penalties, filters and sums take many copies of the logits, so
they are made of at most `VERIFY_ROWS_AT_ONCE` rows at once, which is what the memory plan counts with.
"""

from __future__ import annotations

import torch

from paceline_compat.memory import VERIFY_ROWS_AT_ONCE
from paceline_runtime.sampling.accept import Accepted, accept_drafts
from paceline_runtime.sampling.adjust import adjust_logits
from paceline_runtime.sampling.distribution import distribution
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.speculative.base import Proposal


def judge(
    logits: torch.Tensor,
    proposal: Proposal,
    num_drafts: torch.Tensor,
    history: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    params: RowParams,
) -> Accepted:
    """The verdict on each of B requests; penalties and bias are put into `logits` [B, W, V] in place.

    history int64 [R, L] over all request rows; rows int64 [B], those of the batch; the others as `accept_drafts` takes them.
    """
    num_at_once = max(1, VERIFY_ROWS_AT_ONCE // logits.shape[1])
    if (params.adjusts or params.any_sampled) and len(rows) > num_at_once:
        verdicts = []
        for start in range(0, len(rows), num_at_once):
            part = slice(start, min(start + num_at_once, len(rows)))
            some, drafts = params.part(start, part.stop), proposal.part(start, part.stop)
            verdicts.append(judge(logits[part], drafts, num_drafts[part], history, rows[part], lengths[part], some))
        return Accepted.of(verdicts)
    if params.adjusts:
        texts = history[rows] if params.presence is not None else history[:0]
        logits.copy_(adjust_logits(logits, params, texts, lengths, proposal.tokens))
    dist = distribution(logits, params) if params.any_sampled else None
    return accept_drafts(logits.argmax(-1), dist, proposal, num_drafts, lengths, params)
