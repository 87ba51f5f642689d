"""The selector walk: greedy, sampled, its distribution, and the Triton kernel against the reference."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from paceline_kernels.backend import Backend
from paceline_kernels.selector import Candidates, Codebooks, Draws, select_path
from paceline_kernels.selector.reference import pair_scores

VOCAB = 40


def case(batch: int, slots: int, candidates: int, rank: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Arguments of a walk; the first row is greedy, the others sampled at rising temperatures."""
    return {
        "unary": torch.randn(batch, slots, candidates, dtype=dtype),
        "candidates": torch.stack(
            [torch.stack([torch.randperm(VOCAB)[:candidates] for _ in range(slots)]) for _ in range(batch)]
        ),
        "hidden": torch.randn(batch, slots, rank, dtype=dtype),
        "predecessor": torch.randn(VOCAB, rank, dtype=dtype),
        "successor": torch.randn(VOCAB, rank, dtype=dtype),
        "anchors": torch.randint(0, VOCAB, (batch,)),
        "temperature": torch.arange(batch) * 0.5,
        "seeds": torch.randint(-(2**62), 2**62, (batch,)),
        "positions": torch.randint(0, 5000, (batch, 1)) + torch.arange(slots),
    }


def select(backend: Backend = Backend.AUTO, **walk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The walk of a case."""
    candidates = Candidates(walk["candidates"], walk["unary"], walk["hidden"])
    draws = Draws(walk["temperature"], walk["seeds"], walk["positions"])
    return select_path(candidates, Codebooks(walk["predecessor"], walk["successor"]), walk["anchors"], draws, backend=backend)


def test_greedy_row_takes_the_best_of_every_slot_after_its_own_choice() -> None:
    """Each slot's argmax given the token chosen before it."""
    walk = case(1, 7, 5, 8)

    tokens, _ = select(**walk)

    previous = walk["anchors"]
    for slot in range(7):
        ids = walk["candidates"][:, slot]
        scores = pair_scores(
            walk["unary"][:, slot], walk["hidden"][:, slot], walk["predecessor"][previous], walk["successor"][ids]
        )
        previous = ids[:, scores[0].argmax()]
        assert tokens[:, slot] == previous


@pytest.mark.parametrize("backend", [Backend.REFERENCE, Backend.KERNEL])
@pytest.mark.parametrize("shape", [(4, 7, 16, 16), (3, 1, 5, 3), (2, 3, 4, 33)], ids=str)
def test_order_of_candidates_does_not_matter(backend: Backend, shape: tuple[int, int, int, int]) -> None:
    """Noise belongs to token ids: the same candidates listed otherwise draw the same tokens."""
    walk = case(*shape)
    order = torch.randperm(shape[2])
    shuffled = walk | {"unary": walk["unary"][..., order], "candidates": walk["candidates"][..., order]}

    tokens, q = select(**walk, backend=backend)
    other_tokens, other_q = select(**shuffled, backend=backend)

    assert torch.equal(tokens, other_tokens)
    torch.testing.assert_close(q[..., order], other_q)


@pytest.mark.parametrize("shape", [(4, 7, 16, 16), (3, 1, 5, 3), (5, 3, 7, 33)], ids=str)
def test_kernel_equals_reference(shape: tuple[int, int, int, int]) -> None:
    """Greedy and sampled rows in one launch, candidates and ranks that are no powers of two."""
    walk = case(*shape)

    tokens, q = select(**walk, backend=Backend.KERNEL)
    expected_tokens, expected_q = select(**walk, backend=Backend.REFERENCE)

    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(q, expected_q, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", [Backend.REFERENCE, Backend.KERNEL])
def test_candidate_without_probability_is_never_drawn(backend: Backend) -> None:
    """Where the temperature leaves one candidate any mass, every seed draws it; the smallest temperature overflows nothing."""
    walk = case(24, 2, 4, 8) | {"temperature": torch.full((24,), 1e-30)}

    tokens, q = select(**walk, backend=backend)

    assert torch.equal(q.amax(-1), torch.ones(24, 2))
    assert torch.equal(tokens, select(**walk | {"temperature": torch.zeros(24)})[0])


def test_draws_follow_q() -> None:
    """Chi-square of 8,000 seeds over 6 candidates, each slot on its own and both jointly."""
    num_draws, one = 8_000, case(1, 2, 6, 4)
    walk = {name: value.expand(num_draws, *value.shape[1:]) for name, value in one.items() if "cessor" not in name}
    walk |= {"predecessor": one["predecessor"], "successor": one["successor"], "seeds": torch.arange(num_draws)}
    walk["temperature"] = torch.full((num_draws,), 1.5)

    tokens, q = select(**walk)

    first = Counter(tokens[:, 0].tolist())
    ids = walk["candidates"][0, 0].tolist()
    statistic = sum((first[i] - num_draws * p) ** 2 / (num_draws * p) for i, p in zip(ids, q[0, 0].tolist(), strict=True))
    assert statistic < 25.7  # the 1e-4 quantile at 5 degrees of freedom
    joint = Counter(map(tuple, tokens.tolist()))
    likely = [(i, p) for i, p in zip(ids, q[0, 0].tolist(), strict=True) if num_draws * p > 200]
    for token, p in likely:
        rows = (tokens[:, 0] == token).nonzero()[0, 0]
        second = dict(zip(walk["candidates"][0, 1].tolist(), q[rows, 1].tolist(), strict=True))
        for other, p_other in second.items():
            count, mean = joint[token, other], num_draws * p * p_other
            assert abs(count - mean) < 5 * max(mean, 1) ** 0.5
    assert len(likely) > 1
