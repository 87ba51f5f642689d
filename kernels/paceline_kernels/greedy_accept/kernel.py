"""What a verify commits of greedy requests as two Triton kernels: the best of every block of logits, then a request's run.

The face calls it on a GPU. Plain torch makes some fifteen launches of it, and its argmax takes one program a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.top_logits.jitted import index_of, ordered_key

_BLOCK = 2048


def greedy_accept(logits: torch.Tensor, drafts: torch.Tensor, num_verified: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`greedy_accept` of the reference for 16- and 32-bit floats; an id is one of the vocabulary whatever the logits are."""
    batch, width, vocab = logits.shape
    rows = logits.flatten(0, 1)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    num_blocks = triton.cdiv(vocab, _BLOCK)
    best = torch.empty((batch * width, num_blocks), dtype=torch.int64, device=logits.device)
    _best_of_blocks[(batch * width, num_blocks)](
        logits_ptr=rows,
        row_stride=rows.stride(0),
        best_ptr=best,
        vocab=vocab,
        BLOCK=_BLOCK,
    )
    run = torch.empty((batch, width), dtype=torch.int64, device=logits.device)
    num_tokens = torch.empty(batch, dtype=torch.int64, device=logits.device)
    _accept[(batch,)](
        best_ptr=best,
        num_blocks=num_blocks,
        drafts_ptr=drafts,
        drafts_stride=drafts.stride(0),
        drafts_step=drafts.stride(1),
        num_verified_ptr=num_verified,
        run_ptr=run,
        num_tokens_ptr=num_tokens,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        ALL_BLOCKS=triton.next_power_of_2(num_blocks),
    )
    return run, num_tokens


@triton.jit
def _best_of_blocks(
    logits_ptr,
    row_stride,
    best_ptr,
    vocab,
    BLOCK: tl.constexpr,
):
    row, block, num_blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    logits = tl.load(logits_ptr + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    keys = tl.where(inside, ordered_key(logits, column), -9223372036854775807)
    tl.store(best_ptr + row * num_blocks + block, tl.max(keys, 0))


@triton.jit
def _accept(
    best_ptr,
    num_blocks,
    drafts_ptr,
    drafts_stride,
    drafts_step,
    num_verified_ptr,
    run_ptr,
    num_tokens_ptr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    ALL_BLOCKS: tl.constexpr,
):
    row, column, block = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK_WIDTH), tl.arange(0, ALL_BLOCKS)
    best_at = best_ptr + (row * WIDTH + column)[:, None] * num_blocks + block[None, :]
    inside = (column < WIDTH)[:, None] & (block < num_blocks)[None, :]
    likeliest = index_of(tl.max(tl.load(best_at, mask=inside, other=-9223372036854775807), 1))
    is_draft = column < WIDTH - 1
    drafts = tl.load(drafts_ptr + row * drafts_stride + column * drafts_step, mask=is_draft, other=0)
    is_accepted = is_draft & (column < tl.load(num_verified_ptr + row)) & (drafts == likeliest)
    num_accepted = tl.min(tl.where(is_accepted, WIDTH, column), 0)
    last = tl.sum(tl.where(column == num_accepted, likeliest, 0), 0)
    run = tl.where(is_draft & (column != num_accepted), drafts, last)
    tl.store(run_ptr + row * WIDTH + column, run, mask=column < WIDTH)
    tl.store(num_tokens_ptr + row, num_accepted + 1)
