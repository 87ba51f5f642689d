"""The longest prefix that the argmax would have said: Triton against plain torch, to the bit."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, half

from paceline_kernels.backend import Backend
from paceline_kernels.greedy_accept import greedy_accept

BOTH = (Backend.REFERENCE, Backend.KERNEL)
BATCH = 7


def case(width: int, vocab: int, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits in which ties are many, drafts of which 0, 1, 2 ... are right, and another number of them verified."""
    logits = (torch.randn(BATCH, width, vocab, device=device) * 2).round().to(dtype)
    is_right = torch.arange(width - 1, device=device) < (torch.arange(BATCH, device=device) % width)[:, None]
    likeliest = logits.argmax(-1)[:, :-1]
    drafts = torch.where(is_right, likeliest, (likeliest + 1) % vocab)
    num_verified = torch.tensor([width - 1, 2, 0, width - 1, width - 1, width - 1, 1], device=device).clamp(max=width - 1)
    return logits, drafts, num_verified


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "vocab"), [(1, 4_099), (1, 5), (2, 2_048), (5, 2_049), (8, 4_096), (11, 5)])
def test_runs_are_the_references(width: int, vocab: int, device: str) -> None:
    """At odd sizes, drafts being the first columns of a wider table and logits those of a padded head."""
    for dtype in (half(device), torch.float32):
        logits, drafts, num_verified = case(width, vocab, device, dtype)
        wide = torch.nn.functional.pad(logits, (0, 5), value=100.0)[..., :vocab]
        drafts = torch.nn.functional.pad(drafts, (0, 3))[:, : width - 1]
        (run, num_tokens), found = (greedy_accept(wide, drafts, num_verified, backend=backend) for backend in BOTH)

        assert torch.equal(run, found[0])
        assert torch.equal(num_tokens, found[1])
        assert width == 1 or len(num_tokens.unique()) > 1


@pytest.mark.parametrize("backend", BOTH)
def test_what_a_run_is(backend: Backend) -> None:
    """Accepted drafts and the token after them; of a full accept, of a rejection, of drafts that nobody looked at."""
    likeliest = torch.tensor([[3, 4, 5], [3, 4, 5], [3, 4, 5], [3, 4, 5]])
    logits = torch.nn.functional.one_hot(likeliest, 7).float()
    drafts = torch.tensor([[3, 4], [3, 6], [6, 4], [3, 4]])
    run, num_tokens = greedy_accept(logits, drafts, torch.tensor([2, 2, 2, 1]), backend=backend)

    assert [3, 2, 1, 2] == num_tokens.tolist()
    assert [[3, 4, 5], [3, 4], [3], [3, 4]] == [row[:num] for row, num in zip(run.tolist(), num_tokens.tolist(), strict=True)]


@pytest.mark.parametrize("fill", [float("nan"), float("-inf"), float("inf"), -0.0])
def test_an_id_is_one_of_the_vocabulary(fill: float) -> None:
    """Also where the logits are none: the embedding is read with it."""
    logits = torch.full((2, 1, 2_050), fill)
    none = torch.empty((2, 0), dtype=torch.int64)
    logits[1, 0, 2_049] = 0.0
    expected, found = (greedy_accept(logits, none, torch.zeros(2, dtype=torch.int64), backend=backend) for backend in BOTH)

    assert torch.equal(expected[0], found[0])
    assert 0 <= int(found[0].min()) <= int(found[0].max()) < 2_050


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("vocab", [248_320, 151_936, 49_152])
def test_real_vocabularies(vocab: int, width: int) -> None:
    """In bf16, where ties are many."""
    given = case(width, vocab, "cuda", torch.bfloat16)
    run, num_tokens = greedy_accept(*given, backend=Backend.REFERENCE)
    found = greedy_accept(*given, backend=Backend.KERNEL)

    assert torch.equal(run, found[0])
    assert torch.equal(num_tokens, found[1])
