"""`paceline bench peer`: a real GGUF model on the CPU against transformers' generate, and the memory that serving it takes.

The bench's command calls it. Both run the same weights, dtype and threads; pairs are interleaved, since a shared machine drifts
by more than the two differ, and the figure is the median ratio of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paceline_compat.facts.records import TargetFacts
from paceline_runtime.bench.report import device_text, table, write_json
from paceline_runtime.bench.serving_memory import ServingMemory, measure_serving_memory
from paceline_runtime.errors import ConfigError
from paceline_runtime.llm import LLM
from paceline_runtime.loaders import read_checked
from paceline_runtime.loaders.read import read_target_tensor
from paceline_runtime.params import SamplingParams

Generate = Callable[[list[int], int], list[int]]
"""Prompt ids and a number of tokens -> that many greedy ids."""


@dataclass(frozen=True)
class Phase:
    """Tokens a second of one phase, medians, and the median of the pairs' ratios."""

    name: str
    ours: float
    theirs: float
    ratio: float


def run(args: argparse.Namespace) -> int:
    """Measure, print and write what the flags ask for; 1 when we are slower, take too much memory or differ in a token."""
    torch.set_num_threads(args.threads)
    facts = read_checked(args.model)
    if facts.family != "llama":
        raise ConfigError([f"--model {args.model} is a {facts.family}: name a .gguf file of the llama family"])
    ours, theirs = our_generate(args), transformers_generate(facts, args.dtype)
    generator = torch.Generator().manual_seed(0)
    prompt: list[int] = torch.randint(0, facts.vocab_size, (args.prompt_tokens,), generator=generator).tolist()
    phases, is_same = compare(ours, theirs, prompt, args.new_tokens, args.pairs)
    print(f"{args.model}, {args.dtype}, {device_text(torch.device('cpu'))}, {args.pairs} pairs")
    print(table(("", "ours tok/s", "transformers tok/s", "median ratio"), [_cells(phase) for phase in phases]))
    print(f"greedy ids of {args.new_tokens} tokens are {'equal' if is_same else 'NOT equal'}")
    memory = None if args.skip_memory else measure_serving_memory(args.model, args.dtype, args.threads)
    if memory is not None:
        print(memory.to_text())
    if args.json:
        write_json(args.json, torch.device("cpu"), _summary(phases, is_same, memory))
    fits = memory is None or memory.used_bytes <= memory.allowed_bytes
    return 0 if is_same and fits and all(phase.ratio >= 1.0 for phase in phases) else 1


def compare(ours: Generate, theirs: Generate, prompt: list[int], num_tokens: int, num_pairs: int) -> tuple[list[Phase], bool]:
    """Speeds of prefill and decode over interleaved pairs, the first of which does not count; whether all ids were equal."""
    pairs = []
    is_same = True
    for _ in range(1 + num_pairs):
        sides = [_timed(generate, prompt, num_tokens) for generate in (ours, theirs)]
        is_same &= sides[0][0] == sides[1][0]
        pairs.append(((sides[0][1], sides[1][1]), (sides[0][2], sides[1][2])))
    counts = (("prefill", len(prompt)), ("decode", num_tokens - 1))
    return [_phase(name, count, [pair[at] for pair in pairs[1:]]) for at, (name, count) in enumerate(counts)], is_same


def our_generate(args: argparse.Namespace) -> Generate:
    """The engine as it serves; without a prefix cache, since the same prompt comes again and again."""
    llm = LLM(
        args.model,
        dtype=args.dtype,
        device="cpu",
        threads=args.threads,
        max_model_len=args.prompt_tokens + args.new_tokens,
        max_running_req=1,
        cache_type="naive",
    )

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        return llm.generate([prompt], SamplingParams(max_tokens=num_tokens, ignore_eos=True))[0].token_ids

    return generate


def transformers_llama(facts: TargetFacts) -> Any:
    """Transformers' Llama on the weights that our reader dequantizes, in float32."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=facts.head_rows,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size,
        num_hidden_layers=facts.num_layers,
        num_attention_heads=facts.num_heads,
        num_key_value_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        max_position_embeddings=facts.max_positions,
        rms_norm_eps=facts.rms_norm_eps,
        rope_parameters={"rope_type": facts.rope.kind, "rope_theta": facts.rope.theta, **facts.rope.fields},
        tie_word_embeddings=facts.tie_word_embeddings,
        attention_bias=facts.qkv_bias,
        mlp_bias=facts.mlp_bias,
        bos_token_id=None,
        eos_token_id=list(facts.eos_token_ids),
    )
    model = transformers.LlamaForCausalLM(config).eval()
    state = {name: read_target_tensor(facts, name, torch.device("cpu")) for name in facts.tensors}
    missing, surplus = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}, "the tied head is the only tensor a checkpoint may leave out"
    assert not surplus, "the family knows every tensor"
    model.tie_weights()
    return model


def transformers_generate(facts: TargetFacts, dtype: str) -> Generate:
    """What that model generates in `dtype`."""
    model = transformers_llama(facts).to(getattr(torch, dtype))

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        lengths: dict[str, Any] = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, eos_token_id=None, **lengths)
        new: list[int] = out[0, len(prompt) :].tolist()
        return new

    return generate


def _timed(generate: Generate, prompt: list[int], num_tokens: int) -> tuple[list[int], float, float]:
    """Ids, and the seconds of prefill and decode: a run of one token is the prefill, a longer run less that the decode."""
    seconds, ids = [], []
    for count in (1, num_tokens):
        begin = time.perf_counter()
        ids = generate(prompt, count)
        seconds.append(time.perf_counter() - begin)
    return ids, seconds[0], seconds[1] - seconds[0]


def _phase(name: str, num_tokens: int, seconds: Sequence[tuple[float, float]]) -> Phase:
    ours, theirs = (statistics.median(num_tokens / pair[side] for pair in seconds) for side in (0, 1))
    return Phase(name, ours, theirs, statistics.median(pair[1] / pair[0] for pair in seconds))


def _cells(phase: Phase) -> tuple[str, ...]:
    return phase.name, f"{phase.ours:,.1f}", f"{phase.theirs:,.1f}", f"{phase.ratio:.2f}"


def _summary(phases: Sequence[Phase], is_same: bool, memory: ServingMemory | None) -> dict[str, Any]:
    return {
        "phases": [asdict(phase) for phase in phases],
        "ids_equal": is_same,
        "memory": asdict(memory) if memory else None,
    }
