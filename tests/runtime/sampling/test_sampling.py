"""Distributions and adjusted logits against straightforward loops, and draws that do not depend on how ids are listed."""

import pytest
import torch
from row_params import row_params

from paceline_kernels.counter_random import ACCEPT, DRAW, PROPOSAL, gumbel, mix_seed, uniform
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.adjust import adjust_logits
from paceline_runtime.sampling.distribution import distribution

CPU = torch.device("cpu")


def _rows(*params):
    return row_params(params, list(range(len(params))), [2] * len(params), CPU)


def _naive(logits, params):
    """p of one row as a dense vector, filter by filter."""
    scaled = (logits / params.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    kept = order[: params.top_k] if params.top_k else order
    weights = torch.softmax(torch.tensor([scaled[token] for token in kept], dtype=torch.float64), 0).tolist()
    dense, before = torch.zeros(len(scaled), dtype=torch.float64), 0.0
    for token, weight in zip(kept, weights, strict=True):
        if before < params.top_p and weight >= params.min_p * weights[0]:
            dense[token] = weight
        before += weight
    return dense / dense.sum()


GRID = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=0.9, top_k=20, top_p=0.95),
    SamplingParams(temperature=2.0, top_k=60, top_p=0.5, min_p=0.05),
    SamplingParams(temperature=1.0, top_p=0.01),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("selected", [GRID, [p for p in GRID if p.top_k]], ids=["any", "bounded"])
def test_p_is_what_the_filters_say_row_by_row(selected, dtype):
    """One batch mixes all parameters; bounded top-k takes the path without a sort, with the same p."""
    logits = torch.randn(len(selected), 2, 101).mul(3).to(dtype)
    rows = _rows(*selected)
    dist = distribution(logits, rows)
    dense = torch.zeros(len(selected), 2, 101, dtype=torch.float64).scatter_add(2, dist.ids, dist.probs)

    assert (rows.variant.support > 0) == all(p.top_k for p in selected)
    for index, params in enumerate(selected):
        for row in range(2):
            torch.testing.assert_close(dense[index, row], _naive(logits[index, row].double(), params), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ties_at_the_edge_of_top_k_go_to_the_lower_id(dtype):
    """The same ids are kept whether the vocabulary is sorted or only its top picked."""
    logits = torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0, -1.0, -0.0], dtype=dtype).expand(2, 1, -1)
    bounded = distribution(logits[:1], _rows(SamplingParams(temperature=1.0, top_k=3)))
    mixed = distribution(logits, _rows(SamplingParams(temperature=1.0, top_k=3), SamplingParams(temperature=1.0)))

    assert {1, 2, 3} == set(bounded.ids[0, 0][bounded.probs[0, 0] > 0].tolist())
    assert {1, 2, 3} == set(mixed.ids[0, 0][mixed.probs[0, 0] > 0].tolist())


def test_verify_rows_count_the_drafts_before_them():
    """Row j's penalties equal those of a plain step whose text already holds drafts 1..j."""
    params = SamplingParams(
        temperature=1.0, presence_penalty=0.7, frequency_penalty=-0.3, repetition_penalty=1.4, logit_bias={4: 2.5}
    )
    history = torch.tensor([[3, 5, 4, 4, 9, 0, 0, 0]])
    drafts = torch.tensor([[4, 7, 7]])
    logits = torch.randn(1, 4, 12, dtype=torch.float64)
    together = adjust_logits(logits, _rows(params), history, torch.tensor([4]), drafts)
    for row in range(4):
        text = torch.cat([history[:, :5], drafts[:, :row]], dim=1)
        nothing = torch.empty((1, 0), dtype=torch.int64)
        alone = adjust_logits(logits[:, row : row + 1], _rows(params), text, torch.tensor([4 + row]), nothing)

        torch.testing.assert_close(together[:, row : row + 1], alone)
    assert not torch.equal(together[0, 0], logits[0, 0])


def test_rows_without_penalties_are_left_alone_by_others():
    """A neighbour's penalties and bias change no other row's logits."""
    logits = torch.randn(2, 1, 12, dtype=torch.float64)
    rows = _rows(SamplingParams(presence_penalty=1.0, logit_bias={1: -9.0}), SamplingParams())
    nothing = torch.empty((2, 0), dtype=torch.int64)
    adjusted = adjust_logits(logits, rows, torch.tensor([[1, 2, 3], [1, 2, 3]]), torch.tensor([2, 2]), nothing)

    assert torch.equal(adjusted[1], logits[1])


def test_streams_of_different_purposes_and_keys_are_independent():
    """Means, variances and correlations of a million draws are those of independent uniforms."""
    positions = torch.arange(1_000_000)
    streams = [
        uniform(torch.tensor([mix_seed(seed, choice)]), positions, purpose)
        for seed, choice, purpose in (
            (0, 0, PROPOSAL),
            (0, 0, ACCEPT),
            (0, 0, DRAW),
            (0, 1, PROPOSAL),
            (1, 0, PROPOSAL),
        )
    ]
    streams += [uniform(torch.tensor([mix_seed(0, 0)]), positions, DRAW, torch.full_like(positions, token)) for token in (0, 1)]
    matrix = torch.stack(streams)

    assert ((matrix.mean(1) - 0.5).abs() < 5 * (1 / 12_000_000) ** 0.5).all()
    assert ((matrix.var(1) - 1 / 12).abs() < 1e-3).all()
    correlation = torch.corrcoef(matrix) - torch.eye(len(streams))
    assert (correlation.abs() < 5e-3).all()


def test_noise_belongs_to_a_token_not_to_its_place_in_a_list():
    """Listing the same ids in another order permutes the noise with them."""
    key, position = torch.tensor([5]), torch.tensor([17])
    ids = torch.arange(50)
    order = torch.randperm(50)

    assert torch.equal(gumbel(key, position, DRAW, ids)[order], gumbel(key, position, DRAW, ids[order]))
