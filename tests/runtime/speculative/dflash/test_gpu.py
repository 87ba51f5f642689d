"""On a GPU: a draft of the 27B's shape in bfloat16 with random weights, its kernels, its rings and its CUDA graph."""

from __future__ import annotations

import pytest
import torch
from dflash_pairs import Harness, TableTarget, draft_content, draft_inputs, fill_places

from paceline_compat.facts.checkpoint import draft_facts
from paceline_compat.facts.records import WholeDraft
from paceline_kernels.backend import Backend
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.self_check import check_draft

pytestmark = pytest.mark.gpu
VOCAB_SIZE, HIDDEN = 248_320, 5120
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 262_144,
    "sliding_window": 2048,
    "num_target_layers": 64,
    "target_layer_ids": [5, 19, 33, 47, 61],
    "mask_token_id": 248_070,
    "selector_rank": 256,
    "selector_top_k": 16,
}


@pytest.fixture(scope="module")
def draft() -> Draft:
    """1.9 B random weights, convolutions near the identity."""
    facts = draft_facts("draft", draft_content(**SIZES), {})
    torch.manual_seed(0)
    parameters = Parameters(torch.bfloat16, torch.device("cuda"))
    draft = Draft(WholeDraft.of(facts), parameters)
    for name, place in parameters.places.items():
        shape = place.shape
        tensor = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        if len(shape) == 1:
            tensor = tensor.mul_(0.1).add_(1)
        elif name.endswith("base_kernel"):
            tensor.mul_(0.05)[:, 0] += 1
        else:
            tensor.mul_(shape[-1] ** -0.5)
        place.fill(tensor)
    return draft


@pytest.fixture(scope="module")
def target() -> TableTarget:
    """Embedding and head of the 27B's width."""
    return TableTarget(HIDDEN, VOCAB_SIZE, torch.bfloat16, num_layers=64, device="cuda")


@pytest.fixture
def harness(draft: Draft, target: TableTarget) -> Harness:
    """Three request rows and pages for 3,000 tokens each."""
    return Harness(draft, target, 7, num_rows=4, num_pages=150)


def features(num_rows: int) -> torch.Tensor:
    """Made-up outputs of the five tapped layers."""
    return torch.randn(num_rows, 5, HIDDEN, dtype=torch.bfloat16, device="cuda")


def relative_rms(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Deviation relative to the expected values; NaN fails every bound."""
    return float((found.double() - expected.double()).square().mean().sqrt() / expected.double().square().mean().sqrt())


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 700, 2047, 2600])
def test_kernels_draft_as_the_references(harness: Harness, draft: Draft, target: TableTarget, length: int) -> None:
    """The block is as near to float32 arithmetic as the references are in bf16; the walk draws the same tokens."""
    harness.prefill(1, range(1, 48), 0, features(length))
    rings, one = harness.proposer.rings, torch.ones(1, dtype=torch.int64, device="cuda")
    plain, exact = draft.computed_by(Backend.REFERENCE), in_float32(draft)
    embeddings = draft.block_embeddings(target, 17 * one, 7)

    hidden, expected = (d.forward(embeddings, length * one, one, rings.keys, rings.values) for d in (draft, plain))
    truth = exact.forward(embeddings.float(), length * one, one, rings.keys.float(), rings.values.float())
    candidates = plain.candidates(target, expected[:, 1:])
    walks = [d.select(candidates, 17 * one, 0.7 * one, 5 * one, length * one) for d in (draft, plain)]

    assert relative_rms(hidden, truth) < 1.1 * relative_rms(expected, truth) < 0.1
    assert torch.equal(walks[0][0], walks[1][0])
    torch.testing.assert_close(walks[0][1], walks[1][1], atol=1e-4, rtol=1e-3)


def in_float32(draft: Draft) -> Draft:
    """The same weights, every tensor in float32, by the references."""
    parameters = Parameters(torch.float32, draft.device)
    twin = Draft(draft.config, parameters, Backend.REFERENCE)
    fill_places(parameters, {name: place.view for name, place in draft.parameters.places.items()})
    return twin


@torch.no_grad()
def test_start_up_check_passes(harness: Harness, target: TableTarget) -> None:
    """The serving path and the plain path agree at real sizes."""
    assert check_draft(harness.proposer, target).hidden_deviation < 0.1


@torch.no_grad()
def test_restored_ring_drafts_the_same_block_bitwise(harness: Harness) -> None:
    """Prefill in chunks and verifies with rejected rows, past the ring's size; then its pages alone."""
    length = 0
    for num_tokens in (1024, 1024, 333):
        harness.prefill(1, range(1, 48), length, features(num_tokens))
        length += num_tokens
    for step in range(40):
        harness.verify(1, range(1, 48), length, features(8))
        length += 1 + step % 8

    harness.proposer.on_restore(2, torch.arange(1, 48, device="cuda"), length)

    one, two = (harness.propose(row, 17, length, 0.8, 5) for row in (1, 2))
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.q, two.q)
    reach = torch.arange(length - 2047, length, device="cuda") % harness.proposer.rings.size
    assert torch.equal(harness.proposer.rings.keys[:, 1, reach], harness.proposer.rings.keys[:, 2, reach])


@torch.no_grad()
def test_captured_proposal_replays_for_other_requests(harness: Harness) -> None:
    """One graph of the whole proposal, greedy and sampled rows, replayed with inputs it was not captured with."""
    for row in (1, 2, 3):
        harness.prefill(row, range(1 + 47 * (row - 1), 48 + 47 * (row - 1)), 0, features(100 * row))
    inputs = draft_inputs([1, 2, 3], [5, 6, 7], [90, 180, 270], [0.0, 1.0, 0.5], [1, 2, 3], device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        harness.proposer.propose(inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = harness.proposer.propose(inputs)

    others = draft_inputs([3, 1, 2], [9, 8, 4], [300, 100, 200], [0.9, 0.0, 0.0], [7, 8, 9], device="cuda")
    for name in ("seats", "pending", "lengths", "temperature", "seeds"):
        getattr(inputs, name).copy_(getattr(others, name))
    graph.replay()
    expected = harness.proposer.propose(others)

    assert torch.equal(captured.tokens, expected.tokens)
    torch.testing.assert_close(captured.q, expected.q)
