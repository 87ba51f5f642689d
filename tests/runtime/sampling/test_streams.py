"""Drafts drawn as the proposers draw them, then verified with the same keys: what is committed follows the target.

A draft that shares its noise with the draw after a rejection biases that draw.
"""

import pytest
import torch
from row_params import row_params

from paceline_kernels.counter_random import DRAW, gumbel
from paceline_kernels.selector import Candidates, Codebooks, Draws, select_path
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.accept import accept_drafts
from paceline_runtime.sampling.distribution import Distribution
from paceline_runtime.speculative.base import Proposal
from paceline_runtime.speculative.mtp.proposer import draw

NUM_BLOCKS, VOCAB = 200_000, 8
KEYS = torch.arange(NUM_BLOCKS)
LENGTHS = torch.full((NUM_BLOCKS,), 40)
P = torch.softmax(torch.tensor([0.3, 1.5, -0.4, 0.8, -1.2, 0.1, -0.2, 0.6], dtype=torch.float64), 0)
Q_LOGITS = torch.tensor([1.4, 0.2, 0.9, -1.0, 0.5, -0.6, 1.1, -0.3], dtype=torch.float64)
LIMIT = 29.9
"""Of chi-square with 7 degrees of freedom, exceeded once in 10,000."""


def by_dflash() -> Proposal:
    """One slot of the selector walk, every id a candidate and no pair favoured."""
    ids = torch.arange(VOCAB).expand(NUM_BLOCKS, 1, -1)
    nothing = torch.zeros(VOCAB, 1)
    unary, hidden = Q_LOGITS.expand(NUM_BLOCKS, 1, -1), torch.zeros(NUM_BLOCKS, 1, 1)
    anchors, temperature = torch.zeros_like(KEYS), torch.ones(NUM_BLOCKS)
    places = (LENGTHS + 1)[:, None]
    draws = Draws(temperature, KEYS, places)
    tokens, q = select_path(Candidates(ids, unary, hidden), Codebooks(nothing, nothing), anchors, draws)
    return Proposal(tokens, ids, q)


def by_mtp() -> Proposal:
    """One step of the head."""
    tokens, ids, q = draw(Q_LOGITS.expand(NUM_BLOCKS, -1), torch.ones(NUM_BLOCKS), KEYS, LENGTHS + 1)
    return Proposal(tokens[:, None], ids[:, None], q[:, None])


def by_shared_noise() -> Proposal:
    """What no proposer may do: the noise of the draw."""
    ids, q = torch.arange(VOCAB).expand(NUM_BLOCKS, 1, -1), torch.softmax(Q_LOGITS, 0).expand(NUM_BLOCKS, 1, -1)
    noise = gumbel(KEYS[:, None, None], (LENGTHS + 1)[:, None, None], DRAW, ids)
    return Proposal((q.log() + noise).argmax(-1), ids, q)


def excess_of(proposal: Proposal) -> float:
    """Pearson's statistic of the first committed tokens against p; both fates of a draft occurred."""
    params = row_params([SamplingParams(temperature=1.0)], [0], [0], torch.device("cpu"))
    rows = type(params)(**{**vars(params), "keys": KEYS, "greedy": torch.zeros(NUM_BLOCKS, dtype=torch.bool)})
    dist = Distribution(torch.arange(VOCAB).expand(NUM_BLOCKS, 2, -1), P.expand(NUM_BLOCKS, 2, -1))
    greedy = torch.zeros((NUM_BLOCKS, 2), dtype=torch.int64)
    verdict = accept_drafts(greedy, dist, proposal, torch.ones_like(KEYS), LENGTHS, rows)
    assert min(int((verdict.num_tokens == count).sum()) for count in (1, 2)) > 10_000
    observed, expected = torch.bincount(verdict.run[:, 0], minlength=VOCAB), P * NUM_BLOCKS
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("propose", [by_dflash, by_mtp])
def test_first_tokens_follow_the_target(propose):
    """Accepted or drawn anew."""
    assert excess_of(propose()) < LIMIT


def test_a_draft_that_shares_the_noise_of_the_draw_shows():
    """The test above can fail."""
    assert excess_of(by_shared_noise()) > 10 * LIMIT
