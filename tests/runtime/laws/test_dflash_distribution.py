"""Sampled text drafted by a DFlash 2 draft has the target's joint distribution, whatever the draft thinks."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from dflash_pairs import draft_content, oracle_draft, write_draft
from law_engine import last_logits, make_engine, run
from tiny_models import save_tiny

from paceline_compat import read_draft
from paceline_runtime.loaders import load_target
from paceline_runtime.models.base import TargetModel
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.dflash.load import load_proposer
from paceline_runtime.speculative.dflash.proposer import DFlashProposer

VOCAB_SIZE, TEMPERATURE = 8, 0.9
PROMPT = [3, 1, 4, 1, 5]
NUM_TEXTS = 5_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of eight tokens and a draft of which half are candidates, so that q leaves tokens out that p has."""
    folder = tmp_path_factory.mktemp("eight")
    save_tiny("llama", folder, num_hidden_layers=2, scale=0.12, vocab_size=VOCAB_SIZE, hidden_size=32, eos_token_id=None)
    content = draft_content(
        hidden_size=32,
        vocab_size=VOCAB_SIZE,
        mask_token_id=7,
        num_target_layers=2,
        target_layer_ids=[0, 1],
        selector_top_k=4,
    )
    write_draft(folder / "draft", oracle_draft(content), content)
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> TargetModel:
    """The target in float64."""
    return load_target(folder / "llama", dtype=torch.float64)


@pytest.fixture
def proposer(folder: Path, target: TargetModel) -> DFlashProposer:
    """The draft at a depth that takes all three tokens into one or two steps."""
    return load_proposer(read_draft(str(folder / "draft")), target, 3, torch.float64, torch.device("cpu"), 64)


@pytest.fixture(scope="module")
def joint(target: TargetModel) -> torch.Tensor:
    """Probability of every three tokens after the prompt, [V, V, V]."""

    def after(*tokens: int) -> torch.Tensor:
        return torch.softmax(last_logits(target, [*PROMPT, *tokens]) / TEMPERATURE, 0)

    rows = {(a, b): after(a, b) for a, b in product(range(VOCAB_SIZE), repeat=2)}
    first, second = after(), [after(a) for a in range(VOCAB_SIZE)]
    return torch.stack(
        [torch.stack([first[a] * second[a][b] * rows[a, b] for b in range(VOCAB_SIZE)]) for a in range(VOCAB_SIZE)]
    )


def excess(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Standard deviations of Pearson's statistic above its mean; cells expected under 5 times are pooled."""
    observed, expected = counts.flatten().double(), (probs * counts.sum()).flatten()
    small = expected < 5
    observed = torch.cat((observed[~small], observed[small].sum()[None]))
    expected = torch.cat((expected[~small], expected[small].sum()[None]))
    degrees = len(expected) - 1
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / (2 * degrees) ** 0.5)


def sample(target: TargetModel, proposer: DFlashProposer, *, overlap: bool) -> tuple[torch.Tensor, list[int]]:
    """Counts [V, V, V] of seeded texts with greedy rows beside them, and accept lengths."""
    params = [SamplingParams(max_tokens=3, temperature=TEMPERATURE, seed=seed, ignore_eos=True) for seed in range(NUM_TEXTS)]
    requests = {str(seed): (PROMPT, one) for seed, one in enumerate(params)}
    requests |= {f"greedy{index}": (PROMPT, SamplingParams(max_tokens=3, ignore_eos=True)) for index in range(50)}
    engine = make_engine(target, proposer, overlap=overlap, max_running_req=256, max_model_len=64)
    answers = run(engine, requests, check=False)
    counts = torch.zeros((VOCAB_SIZE,) * 3, dtype=torch.int64)
    for seed in range(NUM_TEXTS):
        counts[tuple(answers[str(seed)].token_ids)] += 1
    assert len({tuple(answers[f"greedy{index}"].token_ids) for index in range(50)}) == 1
    return counts, [length for seed in range(NUM_TEXTS) for length in answers[str(seed)].accepted]


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_joint_distribution_is_the_targets(
    target: TargetModel, proposer: DFlashProposer, joint: torch.Tensor, overlap: bool
) -> None:
    """Chi-square over three tokens: the first without a draft, the others across rejections, accepts and a step's end."""
    counts, accepted = sample(target, proposer, overlap=overlap)

    assert min(accepted.count(0), sum(length > 0 for length in accepted)) > 500
    assert excess(counts, joint) < 4.5


def test_draft_that_lies_about_q_is_seen(target: TargetModel, proposer: DFlashProposer, joint: torch.Tensor) -> None:
    """The same drafts with a flattened q bias the text, and the test above would see it."""
    propose = proposer.propose

    def lying(inputs):
        proposal = propose(inputs)
        proposal.q.copy_(proposal.q.mean(-1, keepdim=True).expand_as(proposal.q))
        return proposal

    proposer.propose = lying
    counts, _ = sample(target, proposer, overlap=False)

    assert excess(counts, joint) > 20
