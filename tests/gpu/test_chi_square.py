"""Sampled verify over six million blocks: what is committed follows the target, whatever the draft claims of itself."""

from dataclasses import replace

import pytest
import torch
from row_params import row_params

from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.accept import accept_drafts
from paceline_runtime.sampling.distribution import distribution
from paceline_runtime.speculative.base import Proposal

VOCAB, CANDIDATES, NUM_STEPS = 48, 16, 3
KINDS = ("trusted", "nan", "wrong total", "greedy")
PARAMS = SamplingParams(temperature=0.8, top_k=20, top_p=0.95)
MARGINAL, LEAST_SAMPLES = 5e-3, 100_000
"""A marginal's bound, and from how many samples on chance alone stays well within it."""
LEAST_P_VALUE = 1e-6


@pytest.fixture(scope="module")
def counts(scale):
    """How often each token was committed at each place of a block, [kind, place, V], over all blocks; and what is expected."""
    device, generator = scale.device, torch.Generator().manual_seed(3)
    logits = (2.0 * torch.randn(NUM_STEPS + 1, VOCAB, generator=generator)).to(device)
    candidates = torch.stack([torch.randperm(VOCAB, generator=generator)[:CANDIDATES] for _ in range(NUM_STEPS)]).to(device)
    own = logits[:NUM_STEPS].gather(1, candidates)  # a draft that is near the target, and so accepted now and then
    q = torch.softmax(own + torch.randn(own.shape, generator=generator).to(device), -1).double()
    found = torch.zeros(len(KINDS), NUM_STEPS + 1, VOCAB, dtype=torch.int64)
    num_blocks, batch = scale.pick(40_000, 6_000_000), scale.pick(20_000, 250_000)
    for start in range(0, num_blocks, batch):
        found += _count(logits, candidates, q, start, batch).cpu()
    return num_blocks, found, _by_hand(logits.double().cpu()), logits.argmax(-1).cpu()


def _count(logits, candidates, q, start, batch):
    """Committed tokens of `batch` blocks whose kinds take turns; the key of a block is its number."""
    device = logits.device
    keys = torch.arange(start, start + batch, device=device)
    kind = keys % len(KINDS)
    one = row_params([PARAMS], [0], [0], device)
    params = replace(one, keys=keys, greedy=kind == KINDS.index("greedy"))
    picks = torch.stack([torch.multinomial(row, batch, replacement=True) for row in q], 1)
    claimed = q.expand(batch, -1, -1).clone()
    claimed[kind == KINDS.index("nan"), :, 3] = torch.nan
    claimed[kind == KINDS.index("wrong total")] *= 0.6
    ids = candidates.expand(batch, -1, -1)
    proposal = Proposal(ids.gather(2, picks[..., None])[..., 0], ids, claimed)
    block = logits.expand(batch, -1, -1)
    lengths, depth = torch.zeros_like(keys), torch.full_like(keys, NUM_STEPS)
    verdict = accept_drafts(block.argmax(-1), distribution(block, params), proposal, depth, lengths, params)
    inside = torch.arange(NUM_STEPS + 1, device=device) < verdict.num_tokens[:, None]
    places = torch.arange(NUM_STEPS + 1, device=device).expand_as(verdict.run)
    flat = (kind[:, None] * (NUM_STEPS + 1) + places) * VOCAB + verdict.run
    return torch.bincount(flat[inside], minlength=len(KINDS) * (NUM_STEPS + 1) * VOCAB).view(len(KINDS), -1, VOCAB)


def _by_hand(logits):
    """p of each place [W, V]: temperature, top-k, top-p, each written as its definition."""
    rows = []
    for row in logits / PARAMS.temperature:
        order = row.argsort(descending=True)[: PARAMS.top_k].tolist()
        p = torch.softmax(row[order], 0).tolist()
        kept, total = [], 0.0
        for token, share in zip(order, p, strict=True):
            if total < PARAMS.top_p:
                kept.append((token, share))
            total += share
        whole = sum(share for _, share in kept)
        rows.append(torch.tensor([dict(kept).get(token, 0.0) / whole for token in range(VOCAB)], dtype=torch.float64))
    return torch.stack(rows)


def p_value(observed, p):
    """Of Pearson's statistic; 0 when a token of no probability occurred."""
    possible = p > 0
    if observed[~possible].any():
        return 0.0
    expected = p[possible] * observed.sum()
    statistic = ((observed[possible] - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize("kind", KINDS[:3])
def test_sampled_rows_follow_the_target(counts, kind, tell, scale):
    """At every place that was reached: marginals within 5e-3 and a chi-square that chance explains."""
    num_blocks, found, expected, _ = counts
    observed = found[KINDS.index(kind)].double()
    reached = [place for place in range(NUM_STEPS + 1) if observed[place].sum() > 0]
    sampled = [place for place in reached if place == 0 or observed[place].sum() >= LEAST_SAMPLES]
    deviation = max(float((observed[i] / observed[i].sum() - expected[i]).abs().max()) for i in sampled)
    chances = [p_value(observed[place], expected[place]) for place in reached]

    tell(blocks=num_blocks, reached=len(reached), marginal=deviation, least_p_value=min(chances))
    assert observed[0].sum() == num_blocks // len(KINDS)
    assert len(reached) == (NUM_STEPS + 1 if kind == "trusted" else 1)
    assert min(chances) > LEAST_P_VALUE
    assert not scale.is_cuda or deviation < MARGINAL


def test_greedy_rows_among_them_are_the_argmax(counts):
    """Never anything else, at any place."""
    _, found, _, best = counts
    observed = found[KINDS.index("greedy")]

    assert observed[0].sum() > 0
    for place in range(NUM_STEPS + 1):
        assert observed[place].sum() == observed[place, best[place]]


def test_the_statistic_notices_a_wrong_distribution(counts):
    """The same counts against another place's distribution, and against one without top-p."""
    _, found, expected, _ = counts
    observed = found[0, 0].double()

    assert p_value(observed, expected[1]) == 0.0 or p_value(observed, expected[1]) < LEAST_P_VALUE
    assert p_value(observed, 0.97 * expected[0] + 0.03 / VOCAB) < LEAST_P_VALUE
