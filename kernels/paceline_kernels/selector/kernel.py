"""The selector walk in Triton: all drafts of a block in one program, greedy and sampled rows in one launch.

The face calls it on a GPU. In plain torch a walk of 7 drafts is some hundred launches of a few microseconds of work each.
Scores are float32, Gumbel noise is float64 from the same counters, so a row draws what the reference draws unless two scores
differ by no more than rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.counter_random import PROPOSAL
from paceline_kernels.counter_random.jitted import gumbel_noise
from paceline_kernels.selector.reference import Candidates, Codebooks, Draws

_NUM_WARPS = 8
"""A walk of one request on an H200: 17 us greedy and 27 sampled so, 33 sampled with 4 and 74 with 1."""


def select_path(
    candidates: Candidates, codebooks: Codebooks, anchors: torch.Tensor, draws: Draws
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operation; q is float32."""
    batch, num_drafts, num_candidates = candidates.ids.shape
    rank, device = candidates.hidden.shape[-1], candidates.ids.device
    tokens = torch.empty((batch, num_drafts), dtype=torch.int64, device=device)
    q = torch.empty((batch, num_drafts, num_candidates), dtype=torch.float32, device=device)
    _select_path[(batch,)](
        unary_ptr=candidates.unary.contiguous(),
        ids_ptr=candidates.ids.contiguous(),
        hidden_ptr=candidates.hidden.contiguous(),
        predecessor_ptr=codebooks.predecessor,
        successor_ptr=codebooks.successor,
        anchors_ptr=anchors.contiguous(),
        temperature_ptr=draws.temperature.contiguous(),
        seeds_ptr=draws.seeds.contiguous(),
        positions_ptr=draws.positions.contiguous(),
        tokens_ptr=tokens,
        q_ptr=q,
        num_drafts=num_drafts,
        num_candidates=num_candidates,
        rank=rank,
        PURPOSE=PROPOSAL,
        BLOCK_C=triton.next_power_of_2(num_candidates),
        BLOCK_R=triton.next_power_of_2(rank),
        num_warps=_NUM_WARPS,
    )
    return tokens, q


@triton.jit
def _select_path(
    unary_ptr,
    ids_ptr,
    hidden_ptr,
    predecessor_ptr,
    successor_ptr,
    anchors_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    tokens_ptr,
    q_ptr,
    num_drafts,
    num_candidates,
    rank,
    PURPOSE: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c, r = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_R)
    is_candidate, in_rank = c < num_candidates, r < rank
    previous = tl.load(anchors_ptr + row)
    temperature = tl.load(temperature_ptr + row).to(tl.float32)
    is_sampled = temperature > 0
    divisor = tl.where(is_sampled, temperature, 1.0)
    seed = tl.load(seeds_ptr + row + c * 0)
    for draft in range(num_drafts):
        at = row * num_drafts + draft
        ids = tl.load(ids_ptr + at * num_candidates + c, mask=is_candidate, other=0)
        hidden = tl.load(hidden_ptr + at * rank + r, mask=in_rank, other=0.0).to(tl.float32)
        context = hidden * tl.load(predecessor_ptr + previous * rank + r, mask=in_rank, other=0.0).to(tl.float32)
        successor_at = successor_ptr + ids[:, None] * rank + r[None, :]
        successor = tl.load(successor_at, mask=is_candidate[:, None] & in_rank[None, :], other=0.0).to(tl.float32)
        unary = tl.load(unary_ptr + at * num_candidates + c, mask=is_candidate, other=float("-inf")).to(tl.float32)
        scores = unary + tl.sum(successor * context[None, :], 1)
        weights = tl.exp((scores - tl.max(scores, 0)) / divisor)
        q = weights / tl.sum(weights, 0)
        tl.store(q_ptr + at * num_candidates + c, q, mask=is_candidate)
        index = tl.argmax(scores, 0)
        if is_sampled:
            noise = gumbel_noise(seed, tl.load(positions_ptr + at + c * 0), ids, PURPOSE)
            log_q = tl.where(q > 0, tl.log(tl.where(q > 0, q, 1.0).to(tl.float64)), float("-inf"))
            index = tl.argmax(log_q + noise, 0)
        previous = tl.sum(tl.where(c == index, ids, 0), 0)
        tl.store(tokens_ptr + at, previous)
