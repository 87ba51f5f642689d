"""Sampled speculative text has the target's joint distribution, through the whole engine."""

from itertools import product

import pytest
import torch
from law_engine import last_logits, make_engine, run
from scripted_proposers import FixedProposer

from paceline_kernels.counter_random import ACCEPT, PROPOSAL
from paceline_runtime.params import SamplingParams

VOCAB = 8
PROMPT = [3, 1, 4, 1, 5]
NUM_TEXTS = 6_000
Q = torch.softmax(torch.tensor([1.2, -0.5, 0.4, 0.9, -1.0, 0.0, 0.3, -0.2], dtype=torch.float64), 0)
FILTERS = dict(temperature=1.1, top_k=6, top_p=0.95)


def _p(target, text):
    """p after `text`: temperature, the six likeliest, the mass before each below 0.95."""
    values, ids = torch.sort(last_logits(target, text) / 1.1, descending=True, stable=True)
    probs = torch.softmax(values[:6], 0)
    probs[probs.cumsum(0) - probs >= 0.95] = 0.0
    return torch.zeros(VOCAB, dtype=torch.float64).scatter(0, ids[:6], probs / probs.sum())


@pytest.fixture(scope="module")
def joint(small_target):
    """Probability of every three tokens after the prompt, [V, V, V]."""
    table = torch.zeros((VOCAB,) * 3, dtype=torch.float64)
    first = _p(small_target, PROMPT)
    for a, b in product(range(VOCAB), repeat=2):
        if first[a] > 0:
            second = _p(small_target, [*PROMPT, a])
            if second[b] > 0:
                table[a, b] = first[a] * second[b] * _p(small_target, [*PROMPT, a, b])
    return table


def _excess(counts, probs):
    """How many standard deviations Pearson's statistic lies above its mean; cells expected under 5 times are pooled."""
    expected = (probs * counts.sum()).flatten()
    observed = counts.flatten().double()
    assert not (observed[expected == 0] > 0).any(), "a text that the filters exclude came out"
    small = expected < 5
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    observed = torch.cat([observed[~small], observed[small].sum()[None]])
    statistic = float(((observed - expected) ** 2 / expected)[expected > 0].sum())
    degrees = int((expected > 0).sum()) - 1
    return (statistic - degrees) / (2 * degrees) ** 0.5


def _sample(target, steps, purpose, overlap):
    """Counts of the first three tokens of many seeded texts, greedy rows among them, and the accept lengths seen."""
    engine = make_engine(target, FixedProposer(steps, Q, purpose=purpose), overlap=overlap, max_running_req=256)
    requests = {
        f"{seed}": (PROMPT, SamplingParams(max_tokens=3, seed=seed, ignore_eos=True, **FILTERS)) for seed in range(NUM_TEXTS)
    }
    requests |= {f"greedy{index}": (PROMPT, SamplingParams(max_tokens=3, ignore_eos=True)) for index in range(200)}
    answers = run(engine, requests, check=False)
    counts = torch.zeros((VOCAB,) * 3, dtype=torch.int64)
    for seed in range(NUM_TEXTS):
        a, b, c = answers[f"{seed}"].token_ids
        counts[a, b, c] += 1
    accepted = [number for seed in range(NUM_TEXTS) for number in answers[f"{seed}"].accepted]
    assert 1 == len({tuple(answers[f"greedy{index}"].token_ids) for index in range(200)}), "a greedy row was sampled"
    return counts, accepted


@pytest.mark.parametrize(("steps", "overlap"), [(1, False), (3, True)])
def test_three_tokens_have_the_targets_joint_distribution(small_target, joint, steps, overlap):
    """Across rejections, full accepts and the boundary between two steps."""
    counts, accepted = _sample(small_target, steps, PROPOSAL, overlap)

    assert accepted.count(0) > 500
    assert sum(number > 0 for number in accepted) > 500
    assert _excess(counts, joint) < 4.5


def test_sharing_a_random_stream_shows(small_target, joint):
    """Drafting with the noise that then accepts the draft biases the text, and the test above sees it."""
    counts, _ = _sample(small_target, 3, ACCEPT, overlap=False)

    assert _excess(counts, joint) > 20
