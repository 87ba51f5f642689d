"""One Gated DeltaNet layer of a verify between its two projections, as three Triton kernels.

The face calls it on a GPU. The first kernel convolves and normalises the rows, one program for one head of a request; the
second moves the state on and computes the new rows from it (`gated_delta`); the third norms and gates the outputs and keeps
keys and decays, which no program of the second may overwrite while others read them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.delta_step.reference import DeltaMemory, DeltaWeights
from paceline_kernels.gated_delta.recurrence import PreparedRows, advance_and_verify
from paceline_kernels.replay import Replay

_NORM_EPS = tl.constexpr(1e-6)


def delta_step(projected: torch.Tensor, width: int, weights: DeltaWeights, memory: DeltaMemory, replay: Replay) -> torch.Tensor:
    """The operation, for float32 states, and rows and journals that the delta rule's kernels take."""
    projected = projected if projected.stride(1) == 1 else projected.contiguous()
    rows = _prepare(projected, width, weights, memory, replay)
    mixed = advance_and_verify(memory.recurrent, memory.journal, replay, rows)
    return _finish(projected, mixed, rows, weights, memory, replay)


def _prepare(projected: torch.Tensor, width: int, weights: DeltaWeights, memory: DeltaMemory, replay: Replay) -> PreparedRows:
    batch, heads, device = len(projected) // width, weights.num_value_heads, projected.device
    q, k = (
        torch.empty((batch, width, weights.num_key_heads, weights.key_dim), dtype=torch.float32, device=device) for _ in "qk"
    )
    v = torch.empty((batch, width, heads, weights.value_dim), dtype=projected.dtype, device=device)
    decays, beta = (torch.empty((batch, width, heads), dtype=torch.float32, device=device) for _ in "db")
    _prepare_rows[(batch, 2 * weights.num_key_heads + heads)](
        x_ptr=projected,
        x_stride=projected.stride(0),
        weight_ptr=weights.conv,
        log_rate_ptr=weights.log_rate,
        rate_bias_ptr=weights.rate_bias,
        states_ptr=memory.conv,
        journal_ptr=memory.conv_journal,
        slots_ptr=replay.slots,
        journals_ptr=replay.journals,
        num_rows_ptr=replay.num_rows,
        snapshot_rows_ptr=replay.snapshot_rows,
        snapshot_slots_ptr=replay.snapshot_slots,
        q_ptr=q,
        k_ptr=k,
        v_ptr=v,
        decays_ptr=decays,
        beta_ptr=beta,
        num_journal=memory.conv_journal.shape[1],
        num_key_heads=weights.num_key_heads,
        num_value_heads=heads,
        key_dim=weights.key_dim,
        value_dim=weights.value_dim,
        query_scale=weights.key_dim**-0.5,
        WIDTH=width,
        KEPT=memory.conv.shape[1],
        ROWS=triton.next_power_of_2(width),
        KEPT_ROWS=triton.next_power_of_2(memory.conv.shape[1]),
        BLOCK=triton.next_power_of_2(max(weights.key_dim, weights.value_dim)),
        num_warps=1 if width == 1 else 2,
    )
    return PreparedRows(q, k, v, decays, beta)


def _finish(
    projected: torch.Tensor, mixed: torch.Tensor, rows: PreparedRows, weights: DeltaWeights, memory: DeltaMemory, replay: Replay
) -> torch.Tensor:
    batch, width, heads, value_dim = rows.v.shape
    out = torch.empty((batch * width, heads * value_dim), dtype=projected.dtype, device=projected.device)
    _finish_rows[(batch * width, heads)](
        mixed_ptr=mixed,
        x_ptr=projected,
        x_stride=projected.stride(0),
        z_offset=weights.widths[0],
        weight_ptr=weights.norm,
        eps=weights.norm_eps,
        k_ptr=rows.k,
        decays_ptr=rows.decays,
        journals_ptr=replay.journals,
        kept_keys_ptr=memory.journal.keys,
        kept_decays_ptr=memory.journal.decays,
        out_ptr=out,
        width=width,
        num_journal=memory.conv_journal.shape[1],
        num_key_heads=weights.num_key_heads,
        num_value_heads=heads,
        key_dim=weights.key_dim,
        value_dim=value_dim,
        BLOCK=triton.next_power_of_2(max(weights.key_dim, value_dim)),
        num_warps=1,
    )
    return out


@triton.jit
def _past(states_ptr, journal_ptr, slot, journal, index, num_journal, channels, c, inside, KEPT: tl.constexpr):
    """Rows `index` [R] of a request's past inputs at channels c [C]: its state's rows, then its journal's. [R, C]."""
    in_state = (index < KEPT)[:, None] & inside[None, :]
    state_at = states_ptr + (slot * KEPT + index)[:, None] * channels + c[None, :]
    in_journal = (index >= KEPT)[:, None] & inside[None, :]
    journal_at = journal_ptr + (journal * num_journal + index - KEPT)[:, None] * channels + c[None, :]
    state = tl.load(state_at, mask=in_state, other=0.0)
    return state + tl.load(journal_at, mask=in_journal, other=0.0)


@triton.jit
def _prepare_rows(
    x_ptr,
    x_stride,
    weight_ptr,
    log_rate_ptr,
    rate_bias_ptr,
    states_ptr,
    journal_ptr,
    slots_ptr,
    journals_ptr,
    num_rows_ptr,
    snapshot_rows_ptr,
    snapshot_slots_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    decays_ptr,
    beta_ptr,
    num_journal,
    num_key_heads,
    num_value_heads,
    key_dim,
    value_dim,
    query_scale,
    WIDTH: tl.constexpr,
    KEPT: tl.constexpr,
    ROWS: tl.constexpr,
    KEPT_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one request: heads 0 .. Hk - 1 are queries, then as many keys, then the values.

    A program reads everything before it writes anything, in tiles of all rows: it waits for one load, not for a chain of them.
    """
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, w, r = tl.arange(0, BLOCK), tl.arange(0, ROWS), tl.arange(0, KEPT_ROWS)
    channels = 2 * num_key_heads * key_dim + num_value_heads * value_dim
    value_head = head - 2 * num_key_heads
    is_value = value_head >= 0
    dim = tl.where(is_value, value_dim, key_dim)
    c = tl.where(is_value, 2 * num_key_heads * key_dim + value_head * value_dim, head * key_dim) + i
    inside, live, kept = i < dim, w < WIDTH, r < KEPT
    slot, journal = tl.load(slots_ptr + request), tl.load(journals_ptr + request)
    num_rows, snapshot_rows = tl.load(num_rows_ptr + request), tl.load(snapshot_rows_ptr + request)
    x_base = x_ptr + request * WIDTH * x_stride

    new = tl.load(x_base + w[:, None] * x_stride + c[None, :], mask=live[:, None] & inside[None, :], other=0.0)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for tap in tl.static_range(KEPT + 1):
        weight = tl.load(weight_ptr + c * (KEPT + 1) + tap, mask=inside, other=0.0).to(tl.float32)
        if tap == KEPT:
            value = new.to(tl.float32)
        else:
            before, after = w + tap < KEPT, (w + tap >= KEPT) & live
            index = tl.where(before & live, num_rows + w + tap, 0)
            past = _past(states_ptr, journal_ptr, slot, journal, index, num_journal, channels, c, inside, KEPT)
            x_at = x_base + (w + tap - KEPT)[:, None] * x_stride + c[None, :]
            own = tl.load(x_at, mask=after[:, None] & inside[None, :], other=0.0)
            value = tl.where(before[:, None], past.to(tl.float32), own.to(tl.float32))
        total += value * weight[None, :]
    # Rows that pad the tile ask for row 0: past the journal's end there is other memory.
    moved_from, taken_from = tl.where(kept, num_rows + r, 0), tl.where(kept, snapshot_rows + r, 0)
    moved = _past(states_ptr, journal_ptr, slot, journal, moved_from, num_journal, channels, c, inside, KEPT)
    if snapshot_rows > 0:
        target = tl.load(snapshot_slots_ptr + request)
        taken = _past(states_ptr, journal_ptr, slot, journal, taken_from, num_journal, channels, c, inside, KEPT)
        place = (target * KEPT + r)[:, None] * channels + c[None, :]
        tl.store(states_ptr + place, taken.to(states_ptr.dtype.element_ty), mask=kept[:, None] & inside[None, :])
    tl.debug_barrier()
    place = (slot * KEPT + r)[:, None] * channels + c[None, :]
    tl.store(states_ptr + place, moved.to(states_ptr.dtype.element_ty), mask=kept[:, None] & inside[None, :])
    place = (journal * num_journal + w)[:, None] * channels + c[None, :]
    tl.store(journal_ptr + place, new, mask=live[:, None] & inside[None, :])

    # The value is rounded as the layers hand it on where nothing is fused.
    convolved = (total * tl.sigmoid(total)).to(v_ptr.dtype.element_ty).to(tl.float32)
    token = request * WIDTH + w
    tile = live[:, None] & inside[None, :]
    if is_value:
        place = (token * num_value_heads + value_head)[:, None] * value_dim + i[None, :]
        tl.store(v_ptr + place, convolved.to(v_ptr.dtype.element_ty), mask=tile)
        gates = x_base + w * x_stride + channels + num_value_heads * value_dim + value_head
        b = tl.load(gates, mask=live, other=0.0).to(tl.float32)
        a = tl.load(gates + num_value_heads, mask=live, other=0.0).to(tl.float32) + tl.load(rate_bias_ptr + value_head)
        softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
        decay = -tl.exp(tl.load(log_rate_ptr + value_head)) * softplus
        tl.store(decays_ptr + token * num_value_heads + value_head, tl.cumsum(decay, 0), mask=live)
        tl.store(beta_ptr + token * num_value_heads + value_head, tl.sigmoid(b), mask=live)
    else:
        normed = convolved * tl.rsqrt(tl.sum(convolved * convolved, 1) + _NORM_EPS)[:, None]
        if head < num_key_heads:
            place = (token * num_key_heads + head)[:, None] * key_dim + i[None, :]
            tl.store(q_ptr + place, normed * query_scale, mask=tile)
        else:
            place = (token * num_key_heads + head - num_key_heads)[:, None] * key_dim + i[None, :]
            tl.store(k_ptr + place, normed, mask=tile)


@triton.jit
def _finish_rows(
    mixed_ptr,
    x_ptr,
    x_stride,
    z_offset,
    weight_ptr,
    eps,
    k_ptr,
    decays_ptr,
    journals_ptr,
    kept_keys_ptr,
    kept_decays_ptr,
    out_ptr,
    width,
    num_journal,
    num_key_heads,
    num_value_heads,
    key_dim,
    value_dim,
    BLOCK: tl.constexpr,
):
    """One value head of one row; the first of those that share a key keeps it."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < value_dim
    place = (token * num_value_heads + head) * value_dim + i
    mixed = tl.load(mixed_ptr + place, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(x_ptr + token * x_stride + z_offset + head * value_dim + i, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + i, mask=inside, other=0.0)
    normed = mixed * tl.rsqrt(tl.sum(mixed * mixed) / value_dim + eps) * weight
    tl.store(out_ptr + place, (normed * z * tl.sigmoid(z)).to(out_ptr.dtype.element_ty), mask=inside)

    kept = tl.load(journals_ptr + token // width) * num_journal + token % width
    tl.store(kept_decays_ptr + kept * num_value_heads + head, tl.load(decays_ptr + token * num_value_heads + head))
    num_shared = num_value_heads // num_key_heads
    if head % num_shared == 0:
        key_head = head // num_shared
        key = tl.load(k_ptr + (token * num_key_heads + key_head) * key_dim + i, mask=i < key_dim, other=0.0)
        tl.store(kept_keys_ptr + (kept * num_key_heads + key_head) * key_dim + i, key, mask=i < key_dim)
