"""The likeliest ids of rows of logits in Triton: maxima of blocks first, then only the blocks that can hold an answer.

The face calls it on a GPU. The `count` largest logits of a row lie in the `count` blocks with the largest maxima, and the least
of these maxima is a bound that at least `count` logits reach. The kernel gathers and sorts the logits that reach the bound; if
there are more than it has room for (a row of equal logits), it sorts all of those blocks instead. It is exact, ties by id.
Measured on an H200 for 32 rows of 248,320: 21 us, `torch.topk` 114 to 122.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.top_logits.jitted import index_of, ordered_key

MAX_COUNT = 32
_BLOCK = 256
_BLOCKS_AT_ONCE = 16
_ROOM = tl.constexpr(256)


def takes(vocab: int, count: int) -> bool:
    """Whether the kernel can pick `count` of so many logits: fewer blocks than answers would hold too little."""
    return count <= MAX_COUNT and vocab >= _BLOCK * MAX_COUNT


def top_logits(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`top_logits` of the reference for 16- and 32-bit floats."""
    num_rows, vocab = logits.shape
    assert takes(vocab, count), f"{count} of {vocab} logits are not for this kernel"
    padded = triton.next_power_of_2(count)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    num_blocks = triton.cdiv(vocab, _BLOCK)
    maxima = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=logits.device)
    _block_maxima[(num_rows, triton.cdiv(num_blocks, _BLOCKS_AT_ONCE))](
        logits_ptr=logits,
        row_stride=logits.stride(0),
        maxima_ptr=maxima,
        vocab=vocab,
        num_blocks=num_blocks,
        BLOCK=_BLOCK,
        BLOCKS=_BLOCKS_AT_ONCE,
        num_warps=4,
    )
    values = torch.empty((num_rows, count), dtype=logits.dtype, device=logits.device)
    ids = torch.empty((num_rows, count), dtype=torch.int64, device=logits.device)
    gathered = torch.empty((num_rows, _ROOM.value), dtype=torch.int64, device=logits.device)
    _pick[(num_rows,)](
        logits_ptr=logits,
        row_stride=logits.stride(0),
        maxima_ptr=maxima,
        gathered_ptr=gathered,
        values_ptr=values,
        ids_ptr=ids,
        vocab=vocab,
        num_blocks=num_blocks,
        count=count,
        COUNT=padded,
        BLOCK=_BLOCK,
        ALL_BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=8,
    )
    return values, ids


@triton.jit
def _block_maxima(
    logits_ptr,
    row_stride,
    maxima_ptr,
    vocab,
    num_blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    logits = tl.load(logits_ptr + row * row_stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
    tl.store(maxima_ptr + row * num_blocks + block, tl.max(logits, 1), mask=block < num_blocks)


@triton.jit
def _pick(
    logits_ptr,
    row_stride,
    maxima_ptr,
    gathered_ptr,
    values_ptr,
    ids_ptr,
    vocab,
    num_blocks,
    count,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ALL_BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    b, room, c = tl.arange(0, ALL_BLOCKS), tl.arange(0, _ROOM), tl.arange(0, COUNT)
    maxima = tl.load(maxima_ptr + row * num_blocks + b, mask=b < num_blocks, other=float("-inf"))
    best = tl.topk(ordered_key(maxima, b), COUNT)
    block = index_of(best).to(tl.int32)
    least = tl.min(best >> 32, 0)
    column = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    in_vocab = (column < vocab) & (block < num_blocks)[:, None]
    logits = tl.load(logits_ptr + row * row_stride + column, mask=in_vocab, other=float("-inf")).to(tl.float32)
    keys = tl.reshape(tl.where(in_vocab, ordered_key(logits, column), -9223372036854775807), (COUNT * BLOCK,))
    reaches = (keys >> 32) >= least
    place = tl.cumsum(reaches.to(tl.int32), 0) - 1
    if tl.max(place, 0) < _ROOM:
        tl.store(gathered_ptr + row * _ROOM + room, tl.full((_ROOM,), -9223372036854775807, tl.int64))
        tl.debug_barrier()
        tl.store(gathered_ptr + row * _ROOM + place, keys, mask=reaches)
        tl.debug_barrier()
        top = tl.topk(tl.load(gathered_ptr + row * _ROOM + room), COUNT)
    else:
        top = tl.topk(keys, COUNT)
    ids = index_of(top)
    tl.store(ids_ptr + row * count + c, ids, mask=c < count)
    values = tl.load(logits_ptr + row * row_stride + ids, mask=c < count, other=0.0)
    tl.store(values_ptr + row * count + c, values, mask=c < count)
