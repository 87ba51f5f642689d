"""Sixteen clients against an engine process: mixed sampling, joins, leaves and stops; nothing is lost, leaked or changed."""

import asyncio
from dataclasses import replace

import pytest
import torch
from gpu_scale import save_predictable
from soak_clients import engine_client, mixed_submits, soak, stream

from paceline_runtime.config import EngineConfig
from paceline_runtime.speculative.dflash.init import DraftSizes, init_draft

NUM_CLIENTS, VOCAB_SIZE = 16, 64
STOP_IDS = (13, 40, 55)
SETTLE_S = 30.0


@pytest.fixture(scope="module")
def config(scale, tmp_path_factory):
    """A predictable hybrid and a random draft for it, on disk, and how to serve them: eight rows for sixteen clients."""
    folder = tmp_path_factory.mktemp("soak")
    path = save_predictable("qwen3_5", folder, scale, vocab_size=VOCAB_SIZE)
    sizes = DraftSizes(sliding_window=scale.pick(64, 2048), selector_rank=32)
    init_draft(str(path), folder / "draft", sizes, torch.bfloat16, seed=0)
    return EngineConfig(
        model_path=str(path),
        device=str(scale.device),
        dtype="float32" if not scale.is_cuda else "bfloat16",
        max_running_req=8,
        max_model_len=scale.pick(448, 2048),
        max_prefill_tokens=128,
        memory_bytes=scale.pick(1 << 30, 16 << 30),
        threads=1,
        speculative_draft_model_path=str(folder / "draft"),
    )


@pytest.mark.parametrize(("algorithm", "num_steps"), [("ngram", 3), ("dflash", 7)])
def test_soak(config, scale, request, tell, algorithm, num_steps):
    """Greedy answers equal the sequential ones but for near ties; afterwards every page is free or cached."""
    draft = config.speculative_draft_model_path if algorithm == "dflash" else None
    served = replace(
        config,
        speculative_algorithm=algorithm,
        speculative_num_steps=num_steps,
        speculative_draft_model_path=draft,
    )
    seconds = request.config.getoption("soak_seconds", None) or scale.pick(0.0, 10.0)
    submits = mixed_submits(VOCAB_SIZE, STOP_IDS, scale.pick((70, 90), (700, 300)))
    alone, tally, stats = asyncio.run(_soak(served, submits, seconds / 2))

    parted, num_rows, unexcused = _differences(alone, tally.greedy)
    tell(**dict(sorted(tally.counts.items())), greedy_rows=num_rows, parted=parted, hits=stats.prefix_hit_tokens)
    assert min(tally.counts["ended"], tally.counts["aborted"], tally.counts["sampled"], num_rows) > 0
    assert stats.prefix_hit_tokens > 0
    assert algorithm != "ngram" or tally.counts["stopped inside a run"] > 0
    assert unexcused == []
    assert parted <= 0.01 * num_rows
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_pages + stats.num_cached_pages == stats.num_pages


async def _soak(config, submits, seconds):
    """Every request alone first, then all clients, then what the engine holds when nobody asks."""
    async with engine_client(config) as client:
        greedy = {name: submit for name, submit in submits.items() if submit.params.is_greedy}
        alone = {name: await stream(client, f"alone-{name}", submit) for name, submit in greedy.items()}
        tally = await soak(client, submits, num_clients=NUM_CLIENTS, seconds=seconds)
        async with asyncio.timeout(SETTLE_S):
            while client.stats.num_running or client.stats.num_waiting:
                await asyncio.sleep(0.1)  # statistics come once a second
        assert client.failure is None
        return alone, tally, client.stats


def _differences(alone, greedy):
    """Answers that parted, the rows compared, and differences that no near tie excuses.

    The deviation is measured where both chose the same token; a tie is near when the alone run's best two logprobs are at
    most twice the largest deviation apart.
    """
    pairs = [(alone[name], answer) for name, answer in greedy]
    same = [_first_difference(one.token_ids, other.token_ids) for one, other in pairs]
    agreed = [
        (one.logprobs[i].logprob, other.logprobs[i].logprob)
        for (one, other), end in zip(pairs, same, strict=True)
        for i in range(len(one.token_ids) if end is None else end)
    ]
    deviation = max((abs(a - b) for a, b in agreed), default=0.0)
    gaps = [
        one.logprobs[end].top_logprobs[0] - one.logprobs[end].top_logprobs[1]
        for (one, _), end in zip(pairs, same, strict=True)
        if end is not None
    ]
    return len(gaps), len(agreed) + len(gaps), [gap for gap in gaps if gap > 2 * deviation]


def _first_difference(one, other):
    """Index of the first token that differs, None for equal answers; an end that comes early differs too."""
    if one == other:
        return None
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)) - 1)
