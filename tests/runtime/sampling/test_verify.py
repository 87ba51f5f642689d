"""The verify keeps the target's distribution, whatever q is; and its greedy rows match the argmax."""

import pytest
import torch
from row_params import row_params

from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.accept import accept_drafts
from paceline_runtime.sampling.distribution import Distribution
from paceline_runtime.speculative.base import Proposal

VOCAB = 6
NUM_ROWS = 200_000


def _accept(p, q_true, q_said, *, greedy=False, num_steps=2, num_verified=2):
    """First committed tokens of many independent blocks whose drafts are drawn from `q_true` while `q_said` is claimed."""
    params = SamplingParams(temperature=0.0 if greedy else 1.0)
    rows = row_params([params], [0], [0], torch.device("cpu"))
    keys = torch.arange(NUM_ROWS)
    rows = type(rows)(**{**vars(rows), "keys": keys, "greedy": torch.full((NUM_ROWS,), greedy)})
    drafts = torch.multinomial(q_true, NUM_ROWS * num_steps, replacement=True).view(NUM_ROWS, num_steps)
    ids = torch.arange(VOCAB)
    proposal = Proposal(
        drafts, ids.expand(NUM_ROWS, num_steps, -1), None if q_said is None else q_said.expand(NUM_ROWS, num_steps, -1)
    )
    dist = Distribution(ids.expand(NUM_ROWS, num_steps + 1, -1), p.expand(NUM_ROWS, num_steps + 1, -1))
    greedy_tokens = torch.full((NUM_ROWS, num_steps + 1), int(p.argmax()))
    lengths = torch.zeros(NUM_ROWS, dtype=torch.int64)
    return accept_drafts(greedy_tokens, dist, proposal, torch.full((NUM_ROWS,), num_verified), lengths, rows)


def _chi_square(tokens, p):
    """Pearson's statistic of observed tokens against p; infinite when an impossible token occurred."""
    observed = torch.bincount(tokens, minlength=VOCAB).double()
    expected = p * observed.sum()
    if (observed[p == 0] > 0).any():
        return float("inf")
    return float(((observed - expected) ** 2 / expected)[p > 0].sum())


LIMIT = 25.7
"""Of chi-square with 5 degrees of freedom, exceeded once in 10,000."""
P = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05, 0.0], dtype=torch.float64)
QS = {
    "equal": P,
    "flat": torch.full((VOCAB,), 1 / VOCAB, dtype=torch.float64),
    "opposed": torch.tensor([0.0, 0.05, 0.1, 0.2, 0.25, 0.4], dtype=torch.float64),
    "certain": torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64),
}


@pytest.mark.parametrize("q", QS.values(), ids=QS)
def test_the_first_token_follows_p_for_any_q(q):
    """Marginal of the first committed token, and of the second where the first draft was accepted."""
    verdict = _accept(P, q, q)
    longer = verdict.num_tokens > 1

    assert _chi_square(verdict.run[:, 0], P) < LIMIT
    assert longer.sum() > 1000
    assert _chi_square(verdict.run[longer, 1], P) < LIMIT


def test_a_point_mass_needs_no_q():
    """Drafts without candidates are accepted with probability p(draft)."""
    verdict = _accept(P, QS["certain"], None)

    assert _chi_square(verdict.run[:, 0], P) < LIMIT
    assert abs(float((verdict.num_tokens > 1).double().mean()) - 0.25) < 5e-3


@pytest.mark.parametrize(
    "said", [QS["flat"] * 0.5, torch.full_like(P, torch.nan), -QS["flat"]], ids=["half", "nan", "negative"]
)
def test_a_q_that_is_no_distribution_is_not_trusted(said):
    """The draft is rejected and the token drawn from p."""
    verdict = _accept(P, QS["certain"], said)

    assert (verdict.num_tokens == 1).all()
    assert _chi_square(verdict.run[:, 0], P) < LIMIT


def test_a_false_q_shifts_the_output():
    """The test above can fail: drafts drawn from another q than claimed do not give p."""
    verdict = _accept(P, QS["certain"], QS["flat"])

    assert _chi_square(verdict.run[:, 0], P) > 10 * LIMIT


def test_greedy_rows_match_the_argmax_and_keep_it():
    """A greedy row commits the argmax whatever was drafted, and accepts exactly the drafts that equal it."""
    verdict = _accept(P, QS["flat"], QS["flat"], greedy=True)

    for column in range(3):
        assert (verdict.run[verdict.num_tokens > column, column] == 0).all()
    assert {1, 2, 3} == set(verdict.num_tokens.tolist())


@pytest.mark.parametrize("num_verified", [0, 1])
@pytest.mark.parametrize("said", [QS["opposed"], None], ids=["q", "point-mass"])
def test_the_token_after_the_verified_drafts_follows_p(said, num_verified):
    """The next draft was not looked at, so its q is not taken off p: prompt lookup and the context's end verify fewer."""
    verdict = _accept(P, QS["opposed"] if said is not None else QS["certain"], said, num_verified=num_verified)
    full = verdict.num_tokens == 1 + num_verified

    assert full.sum() > 1000
    assert _chi_square(verdict.run[full, num_verified], P) < LIMIT


def test_drafts_beyond_the_verified_ones_never_count():
    """With one of two drafts verified, at most two tokens are committed, the second from p."""
    rows = row_params([SamplingParams(temperature=1.0)] * 2, [1, 2], [0, 0], torch.device("cpu"))
    proposal = Proposal(torch.zeros((2, 2), dtype=torch.int64))
    p = torch.tensor([1.0, 0.0]).double().expand(2, 3, 2)
    dist = Distribution(torch.arange(2).expand(2, 3, 2), p)
    tokens = torch.zeros((2, 3), dtype=torch.int64)
    verdict = accept_drafts(tokens, dist, proposal, torch.tensor([1, 0]), torch.zeros(2, dtype=torch.int64), rows)

    assert [2, 1] == verdict.num_tokens.tolist()
