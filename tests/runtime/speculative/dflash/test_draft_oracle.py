"""The draft forward, its scores and its path against the `dflash` package 0.1.0, over shapes, windows and rejections.

In float64, where only the package's norms and both sides' rope angles round to float32; in float32 the matmuls alone differ
by more than 1e-5 on weights as lively as these.
"""

from __future__ import annotations

import pytest
import torch
from dflash.model import _attention_mask
from dflash_pairs import Harness, OracleRun, TableTarget, draft_content, oracle_draft, our_draft

from paceline_kernels.selector import Candidates

TOLERANCE = 1e-5
PAGES = range(1, 9)

SHAPES = [
    pytest.param({}, id="three-taps"),
    pytest.param({"target_layer_ids": [4], "num_hidden_layers": 3}, id="one-tap"),
    pytest.param({"target_layer_ids": [0, 2, 3, 5, 6], "num_hidden_layers": 6}, id="five-taps-six-layers"),
    pytest.param({"num_key_value_heads": 4}, id="one-query-per-key"),
    pytest.param({"num_key_value_heads": 1, "head_dim": 8}, id="four-queries-per-key"),
    pytest.param({"conv_group_size": 1, "conv_kernel_size": 3}, id="group-1-kernel-3"),
    pytest.param({"conv_group_size": 48, "conv_kernel_size": 1}, id="one-group-kernel-1"),
    pytest.param({"sliding_window": 5}, id="window-within-block"),
    pytest.param({"sliding_window": 300}, id="window-beyond-context"),
    pytest.param({"selector_top_k": 96, "selector_rank": 1}, id="all-candidates-rank-1"),
    pytest.param({"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}, "rms_norm_eps": 1e-3}, id="theta-eps"),
]


@pytest.mark.parametrize("prompt", [1, 40], ids=["short", "past-window"])
@pytest.mark.parametrize("changes", SHAPES)
@torch.no_grad()
def test_block_and_path_equal_the_package_over_shapes(changes: dict, prompt: int) -> None:
    """Hidden states, candidates, scores and path agree in a fresh block and in blocks after rejections."""
    content = draft_content(**changes)
    oracle = oracle_draft(content)
    _compare(oracle, content, prompt, num_steps=7, kept_per_step=[1, 3, 8, 1, 5])


@pytest.mark.parametrize("num_steps", range(1, 8))
@torch.no_grad()
def test_every_depth_equals_the_package_at_that_block_size(num_steps: int) -> None:
    """At k below block_size - 1 the block is 1 + k wide, convolution included."""
    content = draft_content(num_hidden_layers=3)
    _compare(oracle_draft(content), content, 20, num_steps, kept_per_step=[1, num_steps + 1, 1])


@torch.no_grad()
def test_long_run_keeps_equal_to_the_package_past_the_ring() -> None:
    """Positions wrap around the ring several times while accept lengths vary."""
    content = draft_content(sliding_window=24)
    _compare(oracle_draft(content), content, 70, 7, kept_per_step=[1 + step % 8 for step in range(60)])


@torch.no_grad()
def test_sampled_distribution_equals_the_package() -> None:
    """q of a sampled row is the package's, slot by slot along the path that was drawn."""
    content = draft_content()
    oracle, target = oracle_draft(content), TableTarget(48, 96)
    draft = our_draft(oracle, content)
    harness, features = Harness(draft, target, 7), torch.randn(30, 3, 48, dtype=torch.float64)
    harness.prefill(1, PAGES, 0, features)

    proposal = harness.propose(1, pending=7, length=30, temperature=0.7, seed=11)

    hidden, *_ = OracleRun(oracle, target).propose(features, 7, 30, 7)
    selector, logits = oracle.candidate_selector, oracle.compute_logits(hidden, target.for_oracle().lm_head)
    previous = torch.tensor([7])
    for slot in range(7):
        ids = proposal.candidates[:, slot]
        pair = selector.predecessor_codebook(previous) * selector.hidden_projection(hidden)[:, slot]
        scores = logits[:, slot].gather(-1, ids) + (selector.successor_codebook(ids) @ pair[0])
        torch.testing.assert_close(
            proposal.q[:, slot].to(torch.float64), torch.softmax(scores / 0.7, -1), atol=TOLERANCE, rtol=TOLERANCE
        )
        previous = proposal.tokens[:, slot]
        assert previous in ids


def test_first_block_row_sees_one_context_row_less_than_the_window() -> None:
    """The package's own mask: 2,047 context rows and the anchor itself at a window of 2,048."""
    seen = _attention_mask(torch.empty(1, 1, 8, 4), torch.empty(1, 1, 5008, 4), is_causal=False, sliding_window=2048)

    assert seen[0, 0, 0, :5000].sum() == 2047
    assert seen[0, 0, :, 5000:].all()


def _compare(oracle, content: dict, prompt: int, num_steps: int, kept_per_step: list[int]) -> None:
    hidden_size, vocab = content["hidden_size"], content["vocab_size"]
    target = TableTarget(hidden_size, vocab)
    draft, reference = our_draft(oracle, content), OracleRun(oracle, target)
    harness = Harness(draft, target, num_steps)
    num_taps = len(draft.config.target_layer_ids)
    features, length = torch.randn(prompt, num_taps, hidden_size, dtype=torch.float64), prompt
    harness.prefill(2, PAGES, 0, features)
    for step, kept in enumerate(kept_per_step):
        anchor = (13 * step + 5) % vocab
        rings = harness.proposer.rings
        ours = draft.forward(
            draft.block_embeddings(target, torch.tensor([anchor]), num_steps),
            torch.tensor([length]),
            torch.tensor([2]),
            rings.keys,
            rings.values,
        )[:, 1:]
        expected, path, ids, _ = reference.propose(features, anchor, length, num_steps)
        torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=TOLERANCE)
        candidates = draft.candidates(target, ours)
        _assert_same_candidates(candidates, ids, oracle.compute_logits(expected, target.for_oracle().lm_head))
        assert harness.propose(2, anchor, length).tokens.tolist() == path.tolist()
        rows = torch.randn(num_steps + 1, num_taps, hidden_size, dtype=torch.float64)
        harness.verify(2, PAGES, length, rows)
        features, length = rows[: min(kept, num_steps + 1)], length + min(kept, num_steps + 1)


def _assert_same_candidates(ours: Candidates, ids: torch.Tensor, logits: torch.Tensor) -> None:
    assert ours.ids.sort(-1).values.tolist() == ids.sort(-1).values.tolist()
    torch.testing.assert_close(ours.unary, logits.gather(-1, ours.ids), atol=TOLERANCE, rtol=TOLERANCE)
