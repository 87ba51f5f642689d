"""The engine's command line flags, shared by every command that runs one (`serve`, `bench`).

It turns flags into an `EngineConfig` and no further: the config checks values, and whoever opens files checks those.
"""

from __future__ import annotations

import argparse
from typing import get_args

from paceline_compat.memory.sizes import parse_size
from paceline_runtime.config import DType, EngineConfig, SpeculativeAlgorithm


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """What to load, and how to run it."""
    model = parser.add_argument_group("model")
    model.add_argument("--model", required=True, metavar="PATH", help="folder with safetensors or one .gguf file, or the file")
    model.add_argument("--dtype", default="auto", choices=get_args(DType), help="compute type (auto: the checkpoint's)")
    model.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 ... (auto: a GPU if there is one)")
    model.add_argument(
        "--max-model-len", type=int, metavar="N", help="context in tokens (default: what model and memory allow)"
    )
    model.add_argument("--dummy-weights", action="store_true", help="random weights: only config.json and tokenizer are read")
    model.add_argument("--threads", type=int, metavar="N", help="CPU threads of the engine (default: all cores)")
    model.add_argument("--tiles", metavar="FILE", help="cuts of products, from `paceline bench tune` (default: as shipped)")
    model.add_argument("--seed", type=int, default=0, help="seed of the engine's own randomness (default: 0)")
    _add_speculation(parser.add_argument_group("speculative decoding"))
    _add_batching(parser.add_argument_group("memory and batching"))


def _add_speculation(group: argparse._ArgumentGroup) -> None:
    algorithms = get_args(SpeculativeAlgorithm)
    group.add_argument("--speculative-algorithm", default="off", choices=algorithms, help="who drafts (default: off)")
    group.add_argument("--speculative-num-steps", type=int, metavar="K", help="draft tokens per step (default: the method's)")
    group.add_argument("--speculative-adaptive", action="store_true", help="verify fewer drafts, down to none, where faster")
    group.add_argument("--speculative-draft-model-path", metavar="PATH", help="the DFlash 2 draft checkpoint")


def _add_batching(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-running-requests", type=int, default=4, metavar="N", help="requests decoded together (default: 4)"
    )
    group.add_argument(
        "--max-prefill-tokens", type=int, default=2048, metavar="N", help="prompt tokens per step (default: 2048)"
    )
    group.add_argument(
        "--decode-prefill-tokens", type=int, metavar="N", help="... in a step that also decodes (default: what takes as long)"
    )
    group.add_argument("--num-pages", type=int, metavar="N", help="K/V pages of 64 tokens (default: from the memory plan)")
    group.add_argument(
        "--num-state-slots", type=int, metavar="N", help="recurrent states of hybrid models, live ones and snapshots together"
    )
    group.add_argument("--memory-bytes", type=size_bytes, metavar="SIZE", help="what the plan may use, e.g. 16GiB")
    group.add_argument("--memory-ratio", type=float, default=0.9, help="share of free memory the plan may use (default: 0.9)")
    group.add_argument("--cache-type", default="prefix", choices=("prefix", "naive"), help="reuse of prompts (default: prefix)")
    group.add_argument("--disable-overlap", action="store_true", help="collect each step before the next is launched")
    group.add_argument("--disable-cuda-graphs", action="store_true", help="launch decode steps kernel by kernel, also on a GPU")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The config that the parsed flags describe, unchecked."""
    return EngineConfig(
        model_path=args.model,
        dtype=args.dtype,
        device=args.device,
        max_running_req=args.max_running_requests,
        max_model_len=args.max_model_len,
        max_prefill_tokens=args.max_prefill_tokens,
        decode_prefill_tokens=args.decode_prefill_tokens,
        num_pages=args.num_pages,
        num_state_slots=args.num_state_slots,
        memory_bytes=args.memory_bytes,
        memory_ratio=args.memory_ratio,
        cache_type=args.cache_type,
        speculative_algorithm=args.speculative_algorithm,
        speculative_num_steps=args.speculative_num_steps,
        speculative_draft_model_path=args.speculative_draft_model_path,
        speculative_adaptive=args.speculative_adaptive,
        overlap=False if args.disable_overlap else None,
        cuda_graphs=not args.disable_cuda_graphs,
        seed=args.seed,
        dummy_weights=args.dummy_weights,
        threads=args.threads,
        tiles=args.tiles,
    )


def size_bytes(text: str) -> int:
    """A size for argparse, which then names the flag: `16GiB`, `500MB` or plain bytes."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
