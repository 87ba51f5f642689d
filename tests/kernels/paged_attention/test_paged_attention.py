"""Paged attention, reference and Triton kernel, against a dense oracle."""

import math

import pytest
import torch

from paceline_kernels.backend import Backend
from paceline_kernels.paged_attention import (
    prefill_attention,
    prefill_context,
    verify_attention,
    verify_context,
    write_pages,
)

PAGE = 64


def dense_attention(q, k, v, start, scale):
    """Rows q [T, Hq, D] at positions start... over k, v [L, Hkv, D], one score at a time in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("thd,lhd->htl", q.double(), k) * scale
    hidden = torch.arange(k.shape[0]) > (start + torch.arange(q.shape[0]))[:, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("htl,lhd->thd", weights, v)


def paged(lengths, width, heads, kv_heads, dim, dtype, seed=0):
    """Requests of the given lengths with `width` rows more, in shuffled pages whose unused slots hold NaN."""
    torch.manual_seed(seed)
    needed = [-(-(length + width) // PAGE) for length in lengths]
    num_pages = 1 + sum(needed)
    keys, values = (torch.full((num_pages, PAGE, kv_heads, dim), math.nan, dtype=dtype) for _ in range(2))
    order = iter((torch.randperm(num_pages - 1) + 1).tolist())
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int64)
    requests = []
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        table[row, :count] = torch.tensor([next(order) for _ in range(count)])
        k, v = (torch.randn(length + width, kv_heads, dim, dtype=dtype) for _ in range(2))
        positions = torch.arange(length + width)
        write_pages(keys, values, table[row, positions // PAGE] * PAGE + positions % PAGE, k, v)
        requests.append((k, v))
    q = torch.randn(len(lengths), width, heads, dim, dtype=dtype)
    return q, keys, values, table, torch.tensor(lengths), requests


def attend(q, keys, values, table, lengths, scale, first=0, *, backend=Backend.REFERENCE):
    """A verify by one of the implementations."""
    context = verify_context(table, lengths, q.shape[1], PAGE, q.dtype, first, backend=backend)
    return verify_attention(q, keys, values, context, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width,heads,kv_heads", [(1, 4, 4), (1, 6, 2), (4, 6, 2), (8, 9, 3)])
def test_each_verify_row_sees_its_own_request_up_to_itself(dtype, width, heads, kv_heads):
    lengths = [0, 5, 63, 64, 130]
    q, keys, values, table, device_lengths, requests = paged(lengths, width, heads, kv_heads, 16, dtype)
    out = attend(q, keys, values, table, device_lengths, 0.3)
    for row, (k, v) in enumerate(requests):
        expected = dense_attention(q[row], k, v, lengths[row], 0.3)
        torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_gate_is_rounded_as_on_its_own(device, width):
    """Each head's gate beside its query, as projections give them; the interpreter does not round to bfloat16 as a GPU does."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    case = paged([0, 5, 64], width, 4, 2, 16, dtype)[:5]
    q, keys, values, table, device_lengths = (x.to(device) for x in case)
    gate = torch.randn(3, width, 8, 16, dtype=dtype, device=device)[:, :, 1::2]
    assert not gate.is_contiguous()
    for backend in (Backend.REFERENCE, Backend.KERNEL):
        context = verify_context(table, device_lengths, width, PAGE, q.dtype, backend=backend)
        attended = verify_attention(q, keys, values, context, 0.3)
        found = verify_attention(q, keys, values, context, 0.3, gate)
        # Two libraries' sigmoids differ in the last bit of float32, which bfloat16 does not show.
        torch.testing.assert_close(found, attended * gate.sigmoid(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("backend", [Backend.REFERENCE, Backend.KERNEL])
@pytest.mark.parametrize("first", [1, 3])
def test_positions_before_the_first_are_not_seen(backend, first):
    """But a request that has no others keeps what it has: a softmax over nothing would be NaN."""
    lengths = [first, 0, 64, 130]
    q, keys, values, table, device_lengths, requests = paged(lengths, 2, 4, 2, 16, torch.float32)
    out = attend(q, keys, values, table, device_lengths, 0.3, first, backend=backend)
    for row, (k, v) in enumerate(requests):
        skipped = min(first, lengths[row])
        expected = dense_attention(q[row], k[skipped:], v[skipped:], lengths[row] - skipped, 0.3)
        torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)


def test_an_inert_row_on_a_dummy_page_of_nan_leaves_the_others_alone():
    q, keys, values, table, lengths, (request,) = paged([70], 2, 4, 2, 16, torch.float64)
    q, table, lengths = q.repeat(2, 1, 1, 1), torch.cat([table, torch.zeros_like(table)]), torch.tensor([70, 0])
    out = attend(q, keys, values, table, lengths, 0.25)
    torch.testing.assert_close(out[0], dense_attention(q[0], *request, 70, 0.25))


@pytest.mark.parametrize("backend,dtype", [(Backend.REFERENCE, torch.float64), (Backend.KERNEL, torch.float32)])
@pytest.mark.parametrize("start,num_tokens", [(0, 1), (0, 70), (64, 1), (64, 64), (128, 37)])
def test_a_prefill_chunk_sees_the_cached_prefix_and_itself(start, num_tokens, backend, dtype):
    q, keys, values, table, _, (request,) = paged([start], num_tokens, 6, 2, 16, dtype)
    padded = torch.cat([table[0], torch.zeros(3, dtype=torch.int64)])
    context = prefill_context(padded, start, num_tokens, dtype, backend=backend)
    out = prefill_attention(q[0], keys, values, context, 0.25)
    torch.testing.assert_close(out, dense_attention(q[0], *request, start, 0.25).to(dtype))


def test_write_pages_touches_only_the_named_slots():
    keys, values = torch.zeros(3, PAGE, 2, 4), torch.zeros(3, PAGE, 2, 4)
    k, v = torch.randn(2, 2, 4), torch.randn(2, 2, 4)
    write_pages(keys, values, torch.tensor([PAGE + 3, 2 * PAGE]), k, v)
    assert torch.equal(keys[1, 3], k[0])
    assert torch.equal(values[2, 0], v[1])
    assert int((keys != 0).any(-1).any(-1).sum()) == 2


@pytest.fixture
def poisoned(monkeypatch):
    """`torch.empty` full of NaN, so that a kernel which leaves a part of its output or workspace unwritten shows."""
    empty = torch.empty

    def filled(*args, **kwargs):
        return empty(*args, **kwargs).fill_(math.nan)

    monkeypatch.setattr(torch, "empty", filled)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "lengths,width,heads,kv_heads,dim,dtype",
    [
        ([0, 5, 63, 64], 1, 4, 2, 16, torch.float32),
        ([130, 1], 4, 6, 2, 24, torch.float32),
        ([61], 8, 9, 3, 40, torch.float16),
        ([200, 0], 3, 40, 1, 16, torch.float32),
    ],
)
def test_the_kernel_equals_the_dense_oracle_at_odd_shapes(lengths, width, heads, kv_heads, dim, dtype):
    q, keys, values, table, device_lengths, requests = paged(lengths, width, heads, kv_heads, dim, dtype)
    out = attend(q, keys, values, table, device_lengths, 0.3, backend=Backend.KERNEL)
    tolerance = 2e-3 if dtype == torch.float16 else 1e-5
    for row, (k, v) in enumerate(requests):
        assert not out[row].isnan().any()
        expected = dense_attention(q[row], k, v, lengths[row], 0.3)
        assert (out[row].double() - expected).norm() <= tolerance * expected.norm()


def test_an_inert_row_does_not_disturb_the_kernel():
    q, keys, values, table, _, (request,) = paged([70], 2, 4, 2, 16, torch.float32)
    keys[0], values[0] = 0.0, 0.0
    q, table, lengths = q.repeat(2, 1, 1, 1), torch.cat([table, torch.zeros_like(table)]), torch.tensor([70, 0])
    out = attend(q, keys, values, table, lengths, 0.25, backend=Backend.KERNEL)
    torch.testing.assert_close(out[0].double(), dense_attention(q[0], *request, 70, 0.25), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype,tolerance", [(torch.bfloat16, 1e-2), (torch.float16, 2e-3), (torch.float32, 1e-5)])
@pytest.mark.parametrize("width,heads,kv_heads,dim", [(1, 32, 8, 128), (8, 32, 8, 128), (8, 24, 4, 256), (8, 9, 3, 64)])
@pytest.mark.parametrize("first", [0, 1])
def test_the_kernel_equals_the_reference_on_a_gpu(dtype, tolerance, width, heads, kv_heads, dim, first):
    lengths = [0, 77, 3000, 8191]
    q, keys, values, table, device_lengths, _ = paged(lengths, width, heads, kv_heads, dim, dtype)
    arguments = [tensor.cuda() for tensor in (q, keys, values, table, device_lengths)]
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments]
    out = attend(*arguments, 0.1, first, backend=Backend.KERNEL)
    expected = attend(*wide, 0.1, first)
    assert not out.isnan().any()
    assert (out.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("start,num_tokens", [(0, 513), (1024, 700)])
def test_prefill_on_a_gpu_equals_float64(start, num_tokens):
    q, keys, values, table, _, (request,) = paged([start], num_tokens, 8, 2, 128, torch.bfloat16)
    context = prefill_context(table[0].cuda(), start, num_tokens, q.dtype)
    out = prefill_attention(q[0].cuda(), keys.cuda(), values.cuda(), context, 0.1).cpu()
    expected = dense_attention(q[0], *request, start, 0.1)
    assert (out.double() - expected).norm() <= 1e-2 * expected.norm()
