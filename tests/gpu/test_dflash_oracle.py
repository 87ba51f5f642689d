"""The draft against the `dflash` package, and a draft as wide as the 27B's in an engine of its own."""

import copy

import pytest
import torch
from dflash.model import _crop_to, _raw_input_embeddings
from dflash_pairs import Harness, OracleRun, TableTarget, draft_content, fill_places, oracle_draft
from gpu_scale import random_dflash, relative_rms, save_predictable
from law_engine import make_engine, run

from paceline_compat.facts.checkpoint import draft_facts
from paceline_compat.facts.records import WholeDraft
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders import load_target
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.dflash.draft import Draft

FLOAT32_BOUND, BFLOAT16_BOUND = 1e-4, 2e-2
"""In bfloat16, or what the package deviates by itself: a tiny random draft amplifies rounding past any fixed bound."""
REAL = dict(
    hidden_size=1024,
    intermediate_size=2048,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=128,
    vocab_size=4096,
    max_position_embeddings=8192,
    mask_token_id=4095,
    sliding_window=512,
    selector_rank=64,
    selector_top_k=16,
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request):
    """The bound is the dtype's."""
    return request.param


@pytest.fixture
def pair(scale, dtype):
    """The package's model in this dtype and, with the same weights, in float32; ours; and a table as their target."""
    content = draft_content(**scale.pick({}, REAL))
    oracle = oracle_draft(content, dtype=dtype).to(scale.device)
    exact = copy.deepcopy(oracle).float()
    facts = draft_facts("draft", content, {})
    config = WholeDraft.of(facts)
    stored = {name.replace("codebook.weight", "codebook"): tensor for name, tensor in oracle.state_dict().items()}
    parameters = Parameters(dtype, scale.device)
    draft = Draft(config, parameters)
    fill_places(parameters, stored)
    target = TableTarget(config.hidden_size, content["vocab_size"], dtype, device=str(scale.device))
    return oracle, exact, draft, target


@torch.no_grad()
@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_draft_equals_the_package_after_rejections(pair, scale, dtype, num_steps, tell):
    """Hidden states of every block, over contexts shorter and longer than the window, with rejected rows in between."""
    oracle, exact, draft, target = pair
    harness, peers = Harness(draft, target, num_steps), [OracleRun(oracle, target), OracleRun(exact, target)]
    shape, length = (len(draft.config.target_layer_ids), draft.config.hidden_size), scale.pick(26, 460)
    assert length < draft.config.sliding_window
    new = torch.randn(length, *shape, dtype=dtype, device=scale.device)
    harness.prefill(1, range(1, 33), 0, new)
    deviations = []
    for step in range(scale.pick(6, 40)):
        ours = block_hidden(harness, target, 5 + step, length, num_steps)
        theirs, truth = (hidden_of(peer, new, 5 + step, length, num_steps) for peer in peers)
        deviations.append((relative_rms(ours, truth), relative_rms(theirs, truth)))
        rows = torch.randn(1 + num_steps, *shape, dtype=dtype, device=scale.device)
        harness.verify(1, range(1, 33), length, rows)
        accepted = 1 + step % (num_steps + 1)
        new, length = rows[:accepted], length + accepted

    ours, theirs = (sum(column) / len(deviations) for column in zip(*deviations, strict=True))
    tell(relative_rms=ours, package=theirs, last_length=length, window=draft.config.sliding_window)
    assert length > draft.config.sliding_window
    assert ours <= (FLOAT32_BOUND if dtype == torch.float32 else max(BFLOAT16_BOUND, theirs))


def block_hidden(harness, target, anchor, length, num_steps):
    """Hidden states of our draft's slots for the harness's first row."""
    draft, rings = harness.proposer.draft, harness.proposer.rings
    at = [torch.tensor([value], device=rings.keys.device) for value in (anchor, length, 1)]
    return draft.forward(draft.block_embeddings(target, at[0], num_steps), at[1], at[2], rings.keys, rings.values)[:, 1:]


def hidden_of(peer, features, anchor, length, num_steps):
    """The same of the package's model, in its own dtype; it also takes the new context rows."""
    ids = torch.tensor([[anchor] + [peer.model.config.dflash_config["mask_token_id"]] * num_steps], device=features.device)
    dtype = next(peer.model.parameters()).dtype
    hidden = peer.model(
        target_hidden=features.flatten(1)[None].to(dtype),
        noise_embedding=_raw_input_embeddings(peer.target, ids).to(dtype),
        position_ids=torch.arange(length - features.shape[0], length + num_steps + 1, device=features.device)[None],
        past_key_values=peer.cache,
        use_cache=True,
    )[:, 1:]
    _crop_to(peer.cache, length)
    return hidden


def test_wide_draft_proposes_for_a_small_target_of_its_width(scale, tmp_path, tell):
    """Hidden size 5120 on a GPU: speculative greedy text is the plain one as far as it is compared with itself."""
    wide = scale.pick({}, dict(hidden_size=5120, num_attention_heads=40, num_key_value_heads=8, intermediate_size=6144))
    path = save_predictable("qwen3", tmp_path, scale, num_hidden_layers=4, **wide)
    target = load_target(path, dtype=scale.dtype, device=scale.device)
    proposer = random_dflash(path, target, 7, window=scale.pick(64, 2048))
    engine = make_engine(target, proposer, overlap=True, memory_bytes=32 << 30)
    params = SamplingParams(max_tokens=30, ignore_eos=True)

    answers = run(engine, {f"r{index}": ([7 + index] * (5 + 40 * index), params) for index in range(3)})

    verifies = [tokens for answer in answers.values() for tokens in answer.steps if tokens.steps]
    tell(steps=len(verifies), accepted=sum(tokens.accepted for tokens in verifies))
    assert all(len(answer.token_ids) == 30 for answer in answers.values())
    assert {tokens.drafted for tokens in verifies} == {7}
    assert engine.executor.proposer.draft.config.hidden_size == target.facts.hidden_size
