"""What is asked of every new dense family: its text is transformers' own, whoever drafts and whatever happens beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch
from knowing_pairs import VOCAB_SIZE, KnowingPair
from law_engine import make_engine, record_plans, run
from law_prompts import law_prompts
from tiny_models import reference

from paceline_runtime.llm import LLM
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer

MAX_TOKENS = 44
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
PROMPTS = law_prompts(8, range(VOCAB_SIZE - 1), short=3, page=64, aborted=30, other=11, third=49)
PROMPTS |= {f"again{count}": [*range(5, 31), *range(5, 20 + count)] for count in range(4)}
"""Texts that go on as they did once, for 11 to 8 tokens: prompt lookup is then right for 0 to 3 drafts of a step."""
WAVES = (("long", "short", "aborted", "page", "again0"), ("parted", "long", "other", "third", "again1", "again2", "again3"))
PROPOSERS = {"off": lambda pair: None, "ngram": lambda pair: NgramProposer(3), "dflash": lambda pair: pair.proposer(7)}


def transformers_texts(model: torch.nn.Module) -> dict[str, list[int]]:
    """Greedy text after every prompt, by the oracle."""
    return {name: _generate(model, ids, MAX_TOKENS) for name, ids in PROMPTS.items()}


@torch.no_grad()
def _generate(model: torch.nn.Module, ids: list[int], num_tokens: int) -> list[int]:
    prompt = torch.tensor([ids])
    options = {"do_sample": False, "max_new_tokens": num_tokens, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, len(ids) :].tolist()


def check_text(pair: KnowingPair, expected: dict[str, list[int]], algorithm: str, *, overlap: bool) -> None:
    """Hits, chunks, preemptions and aborts change nothing, and each of them happens."""
    pages = {"num_pages": 8, "max_prefill_tokens": 100, "decode_prefill_tokens": 64}
    engine = make_engine(pair.target, PROPOSERS[algorithm](pair), overlap=overlap, **pages)
    plans = record_plans(engine)
    accepted, num_hits = Counter(), 0
    for wave in WAVES:
        requests = {name: (PROMPTS[name], GREEDY) for name in wave}
        for name, answer in run(engine, requests, aborts={"aborted": 9} if "aborted" in wave else None).items():
            accepted.update(answer.accepted)
            num_hits += answer.cached_tokens > 0
            assert expected[name][: len(answer.token_ids)] == answer.token_ids, name
            assert name == "aborted" or len(answer.token_ids) == MAX_TOKENS

    num_steps = {"off": 0, "ngram": 3, "dflash": 7}[algorithm]
    assert set(range(num_steps + 1)) <= set(accepted), "an accept length never occurred"
    assert engine.scheduler.num_preemptions > 0
    assert num_hits > 0
    assert any(not chunk.is_last for plan in plans for chunk in plan.prefill), "no prompt was cut into chunks"
    assert max(len(plan.decode) for plan in plans) > 1, "nothing was batched"


def check_window(path: Path, window: int) -> None:
    """A context as long as the window has the text of transformers, which applies it; there it matters one token later."""
    llm, oracle = LLM(str(path), dtype="float64", device="cpu", max_model_len=window, num_pages=2), reference(path)
    prompt = PROMPTS["other"]
    (answer,) = llm.generate([prompt], SamplingParams(max_tokens=window - len(prompt), ignore_eos=True))
    assert _generate(oracle, prompt, window - len(prompt)) == answer.token_ids
    ids = torch.tensor([prompt + answer.token_ids + [1]])
    unwindowed = {"sliding_window": None}
    if hasattr(oracle.config, "use_sliding_window"):
        unwindowed |= {"use_sliding_window": False, "layer_types": ["full_attention"] * oracle.config.num_hidden_layers}
    with torch.no_grad():
        windowed, whole = (model(ids).logits[0] for model in (oracle, reference(path, **unwindowed)))
    assert torch.equal(whole[:window], windowed[:window])
    assert not torch.equal(whole[window:], windowed[window:])
