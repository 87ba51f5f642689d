"""Replayed steps give the texts of launched ones, to the bit, for every family and proposer, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch
from gpu_scale import random_dflash, save_predictable
from law_engine import PADDED, make_engine, run
from msgspec.structs import replace

from paceline_runtime.device.decode import EagerDecoder
from paceline_runtime.loaders import load_target
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.mtp.load import load_mtp
from paceline_runtime.speculative.ngram import NgramProposer

PROPOSERS = {
    "off": lambda path, target: None,
    "ngram": lambda path, target: NgramProposer(3),
    "mtp": lambda path, target: load_mtp(target, 3, dummy=True),
    "dflash": lambda path, target: random_dflash(path, target, 7),
}
PARAMS = (
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=33, temperature=0.8, top_k=20, top_p=0.9, seed=1, ignore_eos=True),
    SamplingParams(max_tokens=25, temperature=1.0, min_p=0.02, repetition_penalty=1.1, logit_bias={5: 1.0}, ignore_eos=True),
    SamplingParams(max_tokens=44, presence_penalty=0.5, logprobs=2, ignore_eos=True),
)


@pytest.fixture(scope="module", params=["qwen3", "qwen3_5", "qwen3_5_moe"])
def saved(request, scale, tmp_path_factory):
    """A target and the folder it was saved in."""
    path = save_predictable(request.param, tmp_path_factory.mktemp("targets"), scale)
    return path, load_target(path, dtype=scale.dtype, device=scale.device)


@pytest.mark.parametrize("algorithm", PROPOSERS)
def test_replays_give_what_launches_give(saved, algorithm, scale, tell):
    """Requests of all kinds together, then some of them again on the prefixes that they left."""
    path, target = saved
    if algorithm == "mtp" and target.facts.family == "qwen3":
        pytest.skip("qwen3 models have no MTP head")
    torch.manual_seed(5)
    prompts = [torch.randint(0, target.facts.vocab_size, (count,)).tolist() for count in (20, 70, 5, scale.pick(66, 130))]
    params = [replace(one, max_tokens=one.max_tokens // scale.pick(3, 1)) for one in PARAMS]
    waves = ({str(i): (ids, params[i]) for i, ids in enumerate(prompts)}, {"1": (prompts[1], params[0])})
    texts, captured = {}, 0
    for name in ("replayed", "launched"):
        decoder = EagerDecoder() if name == "launched" else None
        options = dict(buckets=PADDED, decoder=decoder, overlap=True, cuda_graphs=True)
        options |= dict(max_prefill_tokens=64, memory_bytes=8 << 30)
        engine = make_engine(target, PROPOSERS[algorithm](path, target), max_model_len=448, **options)
        texts[name] = [answer.token_ids for wave in waves for answer in run(engine, wave, check=False).values()]
        if decoder is None:
            captured = engine.executor._decoder.num_captured
            assert not engine.executor._decoder._refused

    assert texts["launched"] == texts["replayed"]
    assert captured > 1
    tell(captured=captured, tokens=sum(map(len, texts["replayed"])))
