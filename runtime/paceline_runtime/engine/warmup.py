"""One prefill and a few decode steps before the first request, so that readiness means that tokens can be made."""

from __future__ import annotations

from paceline_runtime.engine.core import Engine
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams

_REQUEST_ID = "warm-up"


def warm_up(engine: Engine) -> None:
    """Run a greedy and a sampled request, then forget their counts and times; RuntimeError when too little comes out."""
    limit = engine.info.max_model_len
    prompt = [token % engine.info.vocab_size for token in range(1, min(8, limit))]
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=min(4, limit - len(prompt)), temperature=temperature, ignore_eos=True, seed=0)
        refused = engine.add(Submit(request_id=_REQUEST_ID, prompt_ids=prompt, params=params))
        if refused is not None:
            raise RuntimeError(f"the warm-up request was refused: {refused.message}")
        produced = 0
        while engine.has_work:
            produced += sum(len(tokens.token_ids) for tokens in engine.step())
        if produced != params.max_tokens:
            raise RuntimeError(f"the warm-up made {produced} tokens instead of {params.max_tokens}")
    engine.forget()
