"""The verify of the gated delta rule in Triton: replay, one write of the state, and the new rows as one small chunk.

Called by the Gated DeltaNet layers on a GPU. A program owns one value head and a block of its value columns; the up to 8 keys
and 8 queries of a request are one operand of 16 rows, and (I + L)^-1 of their 8 x 8 system is (I + L)(I + L^2)(I + L^4), since
L^8 = 0. Row by row the same work is bound by its reductions (measured: 13.2 against 9.1 us a layer at 48 heads).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.gated_delta.reference import DeltaRows, Journal
from paceline_kernels.replay import Replay

MAX_ROWS = 8
"""Rows of a verify: more take the reference."""
MAX_JOURNAL_ROWS = 16
"""Rows that a journal has room for: more take the reference too."""
_NORM_EPS = tl.constexpr(1e-6)
_BLOCK_V = 32
_PRECISION = "tf32x3"
"""Against float64 its relative error is 1e-7, that of plain tf32 5e-4; ieee takes twice the time."""


def verify_kernel(states: torch.Tensor, journal: Journal, step: Replay, rows: DeltaRows) -> torch.Tensor:
    """`verify` of the reference, for float32 states, at most 8 rows and a journal of at most 16."""
    batch, width, key_heads, key_dim = rows.k.shape
    value_heads, value_dim = rows.v.shape[-2:]
    num_kept = journal.keys.shape[1]
    assert width <= MAX_ROWS, f"{width} rows are more than {MAX_ROWS}"
    assert num_kept <= MAX_JOURNAL_ROWS, f"a journal of {num_kept} rows is longer than {MAX_JOURNAL_ROWS}"
    q, k = _normalised_rows(rows)
    decays, beta = rows.log_decay.cumsum(1), rows.beta.contiguous()
    v = rows.v if rows.v.stride()[2:] == (value_dim, 1) else rows.v.contiguous()
    out = torch.empty((batch, width, value_heads, value_dim), dtype=rows.v.dtype, device=rows.v.device)
    block_v = max(16, min(_BLOCK_V, triton.next_power_of_2(value_dim)))
    _verify[(batch * value_heads, triton.cdiv(value_dim, block_v))](
        states,
        journal.keys,
        journal.values,
        journal.decays,
        step.slots,
        step.journals,
        step.num_rows,
        step.snapshot_rows,
        step.snapshot_slots,
        q,
        k,
        v,
        decays,
        beta,
        out,
        width,
        num_kept,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        v.stride(0),
        v.stride(1),
        BLOCK_K=max(16, triton.next_power_of_2(key_dim)),
        BLOCK_V=block_v,
        PRECISION=_PRECISION,
        num_warps=4,
    )
    # Value heads share keys, and blocks of columns share decays, so no program may write these while others read them.
    journal.keys[:, :width].index_copy_(0, step.journals, k)
    journal.decays[:, :width].index_copy_(0, step.journals, decays)
    return out


def _normalised_rows(rows: DeltaRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised and scaled q and normalised k, float32 [B, W, Hk, Dk]."""
    batch, width, heads, dim = rows.k.shape
    q, k = (x if x.stride()[2:] == (dim, 1) else x.contiguous() for x in (rows.q, rows.k))
    out = torch.empty((2, batch, width, heads, dim), dtype=torch.float32, device=k.device)
    block, strides = triton.next_power_of_2(dim), (q.stride(0), q.stride(1), k.stride(0), k.stride(1))
    _normalise[(batch * width, heads)](q, k, out[0], out[1], width, heads, dim, *strides, dim**-0.5, BLOCK_K=block)
    return out[0], out[1]


@triton.jit
def _normalise(
    q_ptr,
    k_ptr,
    q_out_ptr,
    k_out_ptr,
    width,
    heads,
    dim,
    q_request_stride,
    q_row_stride,
    k_request_stride,
    k_row_stride,
    scale,
    BLOCK_K: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request, place = row // width, row % width
    i = tl.arange(0, BLOCK_K)
    inside = i < dim
    q = tl.load(q_ptr + request * q_request_stride + place * q_row_stride + head * dim + i, mask=inside, other=0.0)
    k = tl.load(k_ptr + request * k_request_stride + place * k_row_stride + head * dim + i, mask=inside, other=0.0)
    q, k = q.to(tl.float32), k.to(tl.float32)
    target = (row * heads + head) * dim + i
    tl.store(q_out_ptr + target, q * tl.rsqrt(tl.sum(q * q) + _NORM_EPS) * scale, mask=inside)
    tl.store(k_out_ptr + target, k * tl.rsqrt(tl.sum(k * k) + _NORM_EPS), mask=inside)


@triton.jit
def _advanced(
    state,
    keys_ptr,
    values_ptr,
    decays_ptr,
    journal,
    num_rows,
    key_head,
    head,
    num_kept,
    key_heads,
    value_heads,
    key_dim,
    value_dim,
    i,
    c,
    PRECISION: tl.constexpr,
):
    """The state [BLOCK_K, BLOCK_V] after the first `num_rows` journal rows: one rank-n update."""
    t = tl.arange(0, 16)
    kept = t < num_rows
    row = journal * num_kept + t
    last_row = journal * num_kept + num_rows - 1
    decays = tl.load(decays_ptr + row * value_heads + head, mask=kept, other=0.0)
    last = tl.load(decays_ptr + last_row * value_heads + head, mask=num_rows > 0, other=0.0)
    key_places = (row[None, :] * key_heads + key_head) * key_dim + i[:, None]
    keys = tl.load(keys_ptr + key_places, mask=kept[None, :] & (i < key_dim)[:, None], other=0.0)
    value_places = (row[:, None] * value_heads + head) * value_dim + c[None, :]
    values = tl.load(values_ptr + value_places, mask=kept[:, None] & (c < value_dim)[None, :], other=0.0)
    weights = tl.where(kept, tl.exp(last - decays), 0.0)
    return state * tl.exp(last) + tl.dot(keys * weights[None, :], values, input_precision=PRECISION)


@triton.jit
def _verify(
    states_ptr,
    keys_ptr,
    values_ptr,
    decays_ptr,
    slots_ptr,
    journals_ptr,
    num_rows_ptr,
    snapshot_rows_ptr,
    snapshot_slots_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    new_decays_ptr,
    beta_ptr,
    out_ptr,
    width,
    num_kept,
    key_heads,
    value_heads,
    key_dim,
    value_dim,
    v_request_stride,
    v_row_stride,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PRECISION: tl.constexpr,
):
    request, head = (tl.program_id(0) // value_heads).to(tl.int64), tl.program_id(0) % value_heads
    key_head = head // (value_heads // key_heads)
    i, c, t = tl.arange(0, BLOCK_K), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, 16)
    in_v = (c < value_dim)[None, :]
    in_state = (i < key_dim)[:, None] & in_v
    slot, journal = tl.load(slots_ptr + request), tl.load(journals_ptr + request)
    place = ((slot * value_heads + head) * key_dim + i)[:, None] * value_dim + c[None, :]
    before = tl.load(states_ptr + place, mask=in_state, other=0.0)

    num_rows, snapshot_rows = tl.load(num_rows_ptr + request), tl.load(snapshot_rows_ptr + request)
    state = _advanced(
        before,
        keys_ptr,
        values_ptr,
        decays_ptr,
        journal,
        num_rows,
        key_head,
        head,
        num_kept,
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        i,
        c,
        PRECISION,
    )
    tl.store(states_ptr + place, state, mask=in_state)
    if snapshot_rows > 0:
        snapshot = _advanced(
            before,
            keys_ptr,
            values_ptr,
            decays_ptr,
            journal,
            snapshot_rows,
            key_head,
            head,
            num_kept,
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            i,
            c,
            PRECISION,
        )
        target = tl.load(snapshot_slots_ptr + request)
        target_place = ((target * value_heads + head) * key_dim + i)[:, None] * value_dim + c[None, :]
        tl.store(states_ptr + target_place, snapshot, mask=in_state)

    # Rows 0 to 7 of the operand are keys, rows 8 to 15 queries.
    row, is_key = t % 8, t < 8
    token = request * width + row
    in_rows = row < width
    x_place = (token[:, None] * key_heads + key_head) * key_dim + i[None, :]
    x_mask = in_rows[:, None] & (i < key_dim)[None, :]
    keys = tl.load(k_ptr + x_place, mask=x_mask & is_key[:, None], other=0.0)
    x = keys + tl.load(q_ptr + x_place, mask=x_mask & (t >= 8)[:, None], other=0.0)
    from_state = tl.dot(x, state, input_precision=PRECISION)
    products = tl.dot(x, tl.trans(keys), input_precision=PRECISION)

    decay = tl.load(new_decays_ptr + token * value_heads + head, mask=in_rows, other=0.0)
    beta = tl.load(beta_ptr + token * value_heads + head, mask=in_rows, other=0.0)
    v_place = request * v_request_stride + row[:, None] * v_row_stride + head * value_dim + c[None, :]
    v = tl.load(v_ptr + v_place, mask=in_rows[:, None] & in_v, other=0.0).to(tl.float32)
    grown = tl.exp(decay)[:, None]
    products *= tl.exp(tl.minimum(decay[:, None] - decay[None, :], 0.0))
    below = is_key[:, None] & (t[:, None] > t[None, :])
    system = tl.where(below, -beta[:, None] * products, 0.0)
    identity = tl.where(t[:, None] == t[None, :], 1.0, 0.0)
    squared = tl.dot(system, system, input_precision=PRECISION)
    fourth = tl.dot(squared, squared, input_precision=PRECISION)
    inverse = tl.dot(identity + squared, identity + fourth, input_precision=PRECISION)
    inverse = tl.dot(identity + system, inverse, input_precision=PRECISION)
    wanted = tl.where(is_key[:, None], beta[:, None] * (v - grown * from_state), 0.0)
    values = tl.dot(inverse, wanted, input_precision=PRECISION)
    seen = (t >= 8)[:, None] & is_key[None, :] & (row[:, None] >= t[None, :])
    out = grown * from_state + tl.dot(tl.where(seen, products, 0.0), values, input_precision=PRECISION)

    head_place = head * value_dim + c[None, :]
    out_place = token[:, None] * value_heads * value_dim + head_place
    tl.store(out_ptr + out_place, out.to(out_ptr.dtype.element_ty), mask=(t >= 8)[:, None] & in_rows[:, None] & in_v)
    kept_place = (journal * num_kept + row[:, None]) * value_heads * value_dim + head_place
    tl.store(values_ptr + kept_place, values, mask=is_key[:, None] & in_rows[:, None] & in_v)
