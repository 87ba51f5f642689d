"""The verify of the causal convolution in Triton: replay, outputs and the new journal in one pass.

The face calls it on a GPU, where plain torch makes some twenty launches of it in every layer. A program owns a block of
channels of one request, so no other program reads what it overwrites, and it overwrites only after it has all outputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.replay import Replay

_BLOCK_C = 256


def verify_conv(
    states: torch.Tensor, journal: torch.Tensor, replay: Replay, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """The operation; sums are float32."""
    batch, width, channels = x.shape
    x, weight = x if x.stride(2) == 1 else x.contiguous(), weight.contiguous()
    out = torch.empty((batch, width, channels), dtype=x.dtype, device=x.device)
    _verify_conv[(batch, triton.cdiv(channels, _BLOCK_C))](
        states_ptr=states,
        journal_ptr=journal,
        slots_ptr=replay.slots,
        journals_ptr=replay.journals,
        num_rows_ptr=replay.num_rows,
        snapshot_rows_ptr=replay.snapshot_rows,
        snapshot_slots_ptr=replay.snapshot_slots,
        x_ptr=x,
        weight_ptr=weight,
        out_ptr=out,
        num_journal=journal.shape[1],
        channels=channels,
        x_request_stride=x.stride(0),
        x_row_stride=x.stride(1),
        WIDTH=width,
        KEPT=states.shape[1],
        BLOCK_C=_BLOCK_C,
    )
    return out


@triton.jit
def _input(states_ptr, journal_ptr, slot, journal, index, num_journal, channels, c, KEPT: tl.constexpr):
    """Row `index` of a request's past inputs: its state's rows, then its journal's."""
    # A bound, not a scalar truth value: Triton 3.9 interprets those as int32, which is no mask.
    in_state = tl.where(index < KEPT, channels, 0)
    state = tl.load(states_ptr + (slot * KEPT + index) * channels + c, mask=c < in_state, other=0.0)
    row = journal * num_journal + index - KEPT
    kept = tl.load(journal_ptr + row * channels + c, mask=c < channels - in_state, other=0.0)
    return state.to(tl.float32) + kept.to(tl.float32)


@triton.jit
def _verify_conv(
    states_ptr,
    journal_ptr,
    slots_ptr,
    journals_ptr,
    num_rows_ptr,
    snapshot_rows_ptr,
    snapshot_slots_ptr,
    x_ptr,
    weight_ptr,
    out_ptr,
    num_journal,
    channels,
    x_request_stride,
    x_row_stride,
    WIDTH: tl.constexpr,
    KEPT: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    slot, journal = tl.load(slots_ptr + request), tl.load(journals_ptr + request)
    num_rows, snapshot_rows = tl.load(num_rows_ptr + request), tl.load(snapshot_rows_ptr + request)
    x_base = x_ptr + request * x_request_stride + c

    for row in tl.static_range(WIDTH):
        total = tl.zeros([BLOCK_C], tl.float32)
        for tap in tl.static_range(KEPT + 1):
            if row + tap < KEPT:
                past = num_rows + row + tap
                value = _input(states_ptr, journal_ptr, slot, journal, past, num_journal, channels, c, KEPT)
            else:
                value = tl.load(x_base + (row + tap - KEPT) * x_row_stride, mask=inside, other=0.0).to(tl.float32)
            weight = tl.load(weight_ptr + c * (KEPT + 1) + tap, mask=inside, other=0.0)
            total += value * weight.to(tl.float32)
        out = total * tl.sigmoid(total)
        out_place = (request * WIDTH + row) * channels + c
        tl.store(out_ptr + out_place, out.to(out_ptr.dtype.element_ty), mask=inside)

    if snapshot_rows > 0:
        target = tl.load(snapshot_slots_ptr + request)
        for row in tl.static_range(KEPT):
            past = snapshot_rows + row
            value = _input(states_ptr, journal_ptr, slot, journal, past, num_journal, channels, c, KEPT)
            place = (target * KEPT + row) * channels + c
            tl.store(states_ptr + place, value.to(states_ptr.dtype.element_ty), mask=inside)
    # The loop goes upwards: row r takes what stood at r + num_rows, which no earlier row has overwritten.
    for row in tl.static_range(KEPT):
        past = num_rows + row
        value = _input(states_ptr, journal_ptr, slot, journal, past, num_journal, channels, c, KEPT)
        tl.store(states_ptr + (slot * KEPT + row) * channels + c, value.to(states_ptr.dtype.element_ty), mask=inside)
    for row in tl.static_range(WIDTH):
        value = tl.load(x_base + row * x_row_stride, mask=inside, other=0.0)
        tl.store(journal_ptr + (journal * num_journal + row) * channels + c, value, mask=inside)
