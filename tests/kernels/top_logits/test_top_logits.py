"""The likeliest ids of a row: Triton against a stable sort, to the bit, ties included."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DEVICES, half, poisoned

from paceline_kernels.backend import Backend
from paceline_kernels.top_logits import top_logits

pytestmark = pytest.mark.usefixtures(poisoned.__name__)


def rows_of(kind: str, vocab: int, device: str) -> torch.Tensor:
    """Rows of one kind of logits: random; few values, so that ties are many; all equal; mostly -inf; both zeros."""
    torch.manual_seed(0)
    logits = torch.randn(2, vocab, device=device) * 3
    match kind:
        case "ties":
            logits = logits.round()
        case "equal":
            logits = torch.full_like(logits, 2.0)
        case "masked":
            logits = logits.masked_fill(torch.rand_like(logits) > 20 / vocab, -torch.inf)
        case "zeros":
            logits = torch.where(torch.rand_like(logits) > 0.5, 0.0, -0.0)
    return logits


def stable(logits: torch.Tensor, count: int) -> torch.Tensor:
    return torch.sort(logits.double(), dim=-1, descending=True, stable=True).indices[:, :count]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["ties", "equal", "zeros"])
def test_ids_are_those_of_a_stable_sort(kind: str, device: str) -> None:
    """A vocabulary that ends inside a block; a row that is part of a wider one."""
    logits = rows_of(kind, 8_200, device)[:1]
    wide = torch.full((1, 8_300), 9.0, device=device)
    wide[:, :8_200] = logits

    values, ids = top_logits(wide[:, :8_200], 13, backend=Backend.KERNEL)

    assert torch.equal(stable(logits, 13), ids)
    assert torch.equal(logits.gather(1, ids), values)
    assert torch.equal(ids, top_logits(logits, 13, backend=Backend.REFERENCE)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["random", "ties", "equal", "masked", "zeros"])
@pytest.mark.parametrize("vocab", [248_320, 151_936, 49_152])
def test_real_vocabularies(vocab: int, kind: str) -> None:
    """In bf16, where ties are many."""
    logits = rows_of(kind, vocab, "cuda").to(half("cuda"))
    assert torch.equal(stable(logits, 32), top_logits(logits, 32, backend=Backend.KERNEL)[1])


def test_a_small_vocabulary_is_not_for_the_kernel() -> None:
    """The face asks before it calls."""
    from paceline_kernels.top_logits import kernel

    assert kernel.takes(8_192, 32)
    assert not kernel.takes(8_191, 32)
    assert not kernel.takes(248_320, 33)
