"""Every Triton kernel against its reference, on a GPU at the released models' shapes in bfloat16; NaN where none may look."""

from pathlib import Path

import pytest
import torch
from gpu_scale import relative_rms

import paceline_kernels
from paceline_kernels.backend import Backend
from paceline_kernels.grouped_conv import grouped_conv
from paceline_kernels.paged_attention import verify_attention, verify_context
from paceline_kernels.selector import Candidates, Codebooks, Draws, select_path
from paceline_kernels.stream_read import stream_read
from paceline_kernels.window_attention import Rings, window_attention

WIDTH = 8
BATCHES = (1, 4, 32)


@pytest.fixture
def dtype(scale):
    """The interpreter computes bfloat16 in float32 only here and there, so a CPU compares in float32."""
    return scale.pick(torch.float32, torch.bfloat16)


@pytest.fixture(params=BATCHES, ids="b{}".format)
def batch(request, scale):
    """Requests in a batch; one and two under the interpreter."""
    return scale.pick(min(request.param, 2), request.param)


def window_attention_case(scale, dtype, batch):
    heads, kv_heads, dim, window = scale.pick((4, 2, 16, 24), (32, 8, 128, 2048))
    ring = window + 64
    lengths = [(window + 97 * index) // (1 + index % 3) for index in range(batch)]
    rings = torch.full((2, batch + 1, ring, kv_heads, dim), torch.nan, dtype=dtype)
    for index, length in enumerate(lengths):
        written = torch.arange(max(0, length - ring), length) % ring
        rings[:, index + 1, written] = torch.randn(2, len(written), kv_heads, dim).to(dtype)
    block = torch.randn(2, batch, WIDTH, kv_heads, dim).to(dtype)
    q = torch.randn(batch, WIDTH, heads, dim).to(dtype)
    rows = torch.arange(1, batch + 1)
    return *_on(scale, q, rings[0], rings[1], rows, torch.tensor(lengths), block[0], block[1]), window


def windowed(q, keys, values, seats, lengths, block_keys, block_values, window, *, backend):
    return window_attention(q, Rings(keys, values, seats, lengths), block_keys, block_values, window, backend=backend)


def test_window_attention(scale, dtype, batch, tell):
    """Rings with NaN wherever nothing was written, windows that are full, wrapped and short."""
    case = window_attention_case(scale, dtype, batch)
    expected = windowed(*_in_float32(case), backend=Backend.REFERENCE)
    deviation = relative_rms(windowed(*case, backend=Backend.KERNEL), expected)

    tell(batch=batch, relative_rms=deviation)
    assert deviation < scale.pick(1e-5, 5e-3)


def test_paged_attention(scale, dtype, batch, tell):
    """Verify rows over pages dealt out of order, contexts from one token on, NaN past every request's end."""
    heads, kv_heads, dim, longest = scale.pick((4, 2, 16, 150), (24, 4, 256, 4000))
    lengths = [1 + (longest - 1) * index // max(batch - 1, 1) for index in range(batch)]
    num_pages = -(-(longest + WIDTH) // 64)
    table = 1 + torch.randperm(batch * num_pages).view(batch, num_pages)
    pages = torch.full((2, 1 + batch * num_pages, 64, kv_heads, dim), torch.nan, dtype=dtype)
    for index, length in enumerate(lengths):
        places = torch.arange(length + WIDTH)
        pages[:, table[index, places // 64], places % 64] = torch.randn(2, len(places), kv_heads, dim).to(dtype)
    q = torch.randn(batch, WIDTH, heads, dim).to(dtype)
    case = _on(scale, q, pages[0], pages[1], table, torch.tensor(lengths))

    deviation = relative_rms(paged(*case, backend=Backend.KERNEL), paged(*_in_float32(case), backend=Backend.REFERENCE))

    tell(batch=batch, relative_rms=deviation)
    assert deviation < scale.pick(1e-5, 5e-3)


def paged(q, keys, values, table, lengths, *, backend):
    context = verify_context(table, lengths, WIDTH, keys.shape[1], q.dtype, backend=backend)
    return verify_attention(q, keys, values, context, q.shape[-1] ** -0.5)


def test_grouped_conv(scale, dtype, batch, tell):
    """Strided dynamic kernels, as the draft's projection leaves them."""
    hidden, taps = scale.pick(320, 5120), 2
    x = torch.randn(batch, WIDTH, hidden).to(dtype)
    delta = 0.1 * torch.randn(batch, WIDTH, 2, taps, hidden // 16)
    base = torch.randn(taps, hidden).to(dtype)
    x, delta, base = _on(scale, x, delta.to(dtype), base)

    expected = grouped_conv(x.float(), delta[:, :, 1].float(), base.float(), backend=Backend.REFERENCE)
    deviation = relative_rms(grouped_conv(x, delta[:, :, 1], base, backend=Backend.KERNEL), expected)

    tell(batch=batch, relative_rms=deviation)
    assert deviation < scale.pick(1e-6, 5e-3)


def selected(unary, ids, hidden, predecessor, successor, anchors, *draws, backend):
    return select_path(
        Candidates(ids, unary, hidden), Codebooks(predecessor, successor), anchors, Draws(*draws), backend=backend
    )


def test_selector(scale, dtype, batch, tell):
    """Greedy and sampled rows: the same tokens, and q to rounding."""
    vocab, rank, candidates, slots = scale.pick((96, 16, 8, 3), (248_320, 256, 16, 7))
    ids = torch.stack([torch.randperm(vocab)[:candidates] for _ in range(batch * slots)]).view(batch, slots, candidates)
    floats = [torch.randn(batch, slots, candidates), torch.randn(batch, slots, rank), *torch.randn(2, vocab, rank)]
    unary, hidden, predecessor, successor = (x.to(dtype) for x in floats)
    arguments = _on(
        scale,
        *(unary, ids, hidden, predecessor, successor, torch.randint(0, vocab, (batch,)), (torch.arange(batch) % 3) * 0.6),
        *(torch.randint(-(2**62), 2**62, (batch,)), torch.randint(0, 9000, (batch, 1)) + torch.arange(slots)),
    )
    tokens, q = selected(*arguments, backend=Backend.KERNEL)
    expected, expected_q = selected(*arguments, backend=Backend.REFERENCE)

    same = float((tokens == expected).all(1).float().mean())
    tell(batch=batch, equal_paths=same)
    assert same >= 1 - 1 / 16  # two scores may lie within rounding of each other
    agree = (tokens == expected).all(1)
    torch.testing.assert_close(q[agree].double(), expected_q[agree].double(), atol=2e-3, rtol=2e-2)


def test_stream_read(scale):
    """The bench's read sums every element."""
    (x,) = _on(scale, torch.randint(-9, 9, (scale.pick(5_001, 100_000_001),), dtype=torch.int32))

    parts, whole = (stream_read(x, backend=backend) for backend in (Backend.KERNEL, Backend.REFERENCE))

    assert int(parts.sum()) == int(whole)


def test_every_kernel_has_a_test_on_a_gpu():
    """Here, or in a file of its own that is marked `gpu`."""
    folders = {path.parent.name for path in Path(paceline_kernels.__file__).parent.glob("*/kernel.py")}
    here = Path(__file__)
    texts = [path.read_text() for path in here.parents[1].rglob("test_*.py") if path != here]
    marked = [
        here.read_text(),
        *(
            text
            for text in texts
            if ("mark.gpu" in text or "kernel_checks import DEVICES" in text) and "backend=Backend.KERNEL" in text
        ),
    ]

    assert len(folders) >= 5
    assert {name for name in folders if not any(f"paceline_kernels.{name} import" in text for text in marked)} == set()


def _in_float32(case):
    return [part.float() if torch.is_tensor(part) and part.is_floating_point() else part for part in case]


def _on(scale, *tensors):
    return [tensor.to(scale.device) for tensor in tensors]
