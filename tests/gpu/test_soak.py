"""Sixteen clients of one server: mixed sampling, joins, leaves and stops; nothing is lost, leaked or changed."""

import asyncio

import httpx
import pytest
import torch
from gpu_scale import save_predictable, teach_successors
from served import served_model
from soak_clients import MODEL, is_greedy, metric, mixed_bodies, save_words, soak, stream

from paceline_runtime.speculative.dflash.init import DraftSizes, init_draft

NUM_CLIENTS, VOCAB_SIZE = 16, 64
STOP_IDS = [13, 40, 55]
SETTLE_S = 30.0


@pytest.fixture(scope="module")
def folder(scale, tmp_path_factory):
    """A predictable hybrid, and a draft that knows towards what it leans."""
    folder = tmp_path_factory.mktemp("soak")
    path = save_predictable("qwen3_5", folder, scale, vocab_size=VOCAB_SIZE, strength=scale.pick(4.0, 1.0))
    save_words(path, VOCAB_SIZE)
    sizes = DraftSizes(sliding_window=scale.pick(64, 2048), selector_rank=32)
    init_draft(str(path), folder / "draft", sizes, torch.bfloat16, seed=0)
    teach_successors(folder / "draft", path)
    return folder


def _flags(folder, scale, algorithm, num_steps, *switches):
    """How to serve: eight rows for sixteen clients."""
    flags = {
        "device": scale.device,
        "dtype": scale.pick("float32", "bfloat16"),
        "max-running-requests": 8,
        "max-model-len": scale.pick(448, 2048),
        "max-prefill-tokens": 128,
        "memory-bytes": scale.pick(1 << 30, 16 << 30),
        "threads": 1,
        "speculative-algorithm": algorithm,
        "speculative-num-steps": num_steps,
        "served-model-name": MODEL,
        "log-level": "warning",
    }
    if algorithm == "dflash":
        flags["speculative-draft-model-path"] = folder / "draft"
    return [*switches, *(text for name, value in flags.items() for text in (f"--{name}", str(value)))]


@pytest.mark.parametrize(("algorithm", "num_steps"), [("ngram", 3), ("dflash", 7)])
def test_soak(folder, scale, request, tell, algorithm, num_steps):
    """Greedy answers equal the sequential ones but for near ties; afterwards every page is free or cached."""
    seconds = request.config.getoption("soak_seconds", None) or scale.pick(0.0, 5.0)
    bodies = mixed_bodies(VOCAB_SIZE, STOP_IDS, scale.pick((70, 90), (700, 300)))
    switches = ["--disable-cuda-graphs"] if request.config.getoption("disable_cuda_graphs", None) else []
    with served_model(folder / "qwen3_5", *_flags(folder, scale, algorithm, num_steps, *switches)) as server:
        alone, tally, pages, hits = asyncio.run(_soak(server.url, bodies, seconds))
        server.terminate()
        status, said = server.ended()

    parted, num_rows, unexcused = _differences(alone, tally.greedy)
    tell(**dict(sorted(tally.counts.items())), greedy_rows=num_rows, parted=parted, hits=int(hits))
    assert (status, "Traceback" in said) == (0, False), said
    assert min(tally.counts["ended"], tally.counts["aborted"], tally.counts["sampled"], num_rows, hits) > 0
    assert tally.counts["stopped inside a run"] > 0
    assert unexcused == []
    assert parted <= 0.01 * num_rows
    assert pages["used"] == 0
    assert pages["free"] + pages["cached"] > 0


async def _soak(url, bodies, seconds):
    """Every request alone first, then all clients, then what the engine holds when nobody asks."""
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        alone = {name: await stream(http, body) for name, body in bodies.items() if is_greedy(body)}
        tally = await soak(http, bodies, num_clients=NUM_CLIENTS, seconds=seconds)
        async with asyncio.timeout(SETTLE_S):
            while await _busy(http):
                await asyncio.sleep(0.1)  # statistics come once a second
        hits = (await metric(http, "paceline_prefix_hit_tokens"))[""]
        return alone, tally, await metric(http, "paceline_kv_pages"), hits


async def _busy(http):
    running, waiting = [await metric(http, f"paceline_requests_{state}") for state in ("running", "waiting")]
    return running[""] + waiting[""] > 0


def _differences(alone, greedy):
    """Answers that parted, the rows compared, and differences that no near tie excuses.

    The deviation is measured where both chose the same token; a tie is near when the alone run's best two logprobs are at
    most twice the largest deviation apart.
    """
    pairs = [(alone[name], answer) for name, answer in greedy]
    ends = [_first_difference(one, other) for one, other in pairs]
    agreed = [
        (one.logprobs[i], other.logprobs[i])
        for (one, other), end in zip(pairs, ends, strict=True)
        for i in range(len(one.tokens) if end is None else end)
    ]
    deviation = max((abs(a - b) for a, b in agreed), default=0.0)
    gaps = [one.gaps[end] for (one, _), end in zip(pairs, ends, strict=True) if end is not None]
    return len(gaps), len(agreed) + len(gaps), [gap for gap in gaps if gap > 2 * deviation]


def _first_difference(one, other):
    """Index of the first token that differs, None for equal answers; an end that comes early differs too."""
    if (one.tokens, one.text, one.finish_reason) == (other.tokens, other.text, other.finish_reason):
        return None
    differing = (i for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)) if a != b)
    return next(differing, min(len(one.tokens), len(other.tokens)) - 1)
