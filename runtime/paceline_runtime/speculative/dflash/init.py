"""`paceline draft init`: write a random DFlash 2 draft that fits a target.

The CLI calls it. It writes what a release holds (`config.json`, `model.safetensors`, released tensor names), so the `dflash`
package loads the draft too. Until it is trained, hardly any of its drafts is accepted; it is there to try the whole path with.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline_compat.errors import MetadataError
from paceline_compat.facts.checkpoint import draft_facts, read_target
from paceline_compat.facts.draft_tensors import expected_shapes
from paceline_compat.facts.records import DFLASH2_ARCHITECTURE, SLIDING_ATTENTION, TargetFacts, is_power_of_two
from paceline_compat.rules.pair import Options
from paceline_compat.rules.table import check

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class DraftSizes:
    """What one can choose freely in a draft; everything else follows from the target.

    `target_layer_ids` empty means one tap per draft layer, evenly spread; `mask_token_id` None means the last token.
    """

    num_layers: int = 2
    target_layer_ids: tuple[int, ...] = ()
    block_size: int = 8
    sliding_window: int = 2048
    selector_rank: int = 64
    mask_token_id: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `paceline draft init`."""
    sizes = DraftSizes()
    parser.add_argument("--target", required=True, help="checkpoint folder, .gguf file or hf:// location of the target")
    parser.add_argument("--out", required=True, type=Path, help="folder to write; must not hold a checkpoint yet")
    parser.add_argument("--layers", type=int, default=sizes.num_layers, help=f"decoder layers (default: {sizes.num_layers})")
    parser.add_argument("--taps", type=_layer_ids, default=(), help="target layers to read, as 1,9,17 (default: spread evenly)")
    block = f"anchor and drafts; k is at most one less (default: {sizes.block_size})"
    parser.add_argument("--block-size", type=int, default=sizes.block_size, help=block)
    window = f"sliding window in tokens (default: {sizes.sliding_window})"
    parser.add_argument("--window", type=int, default=sizes.sliding_window, help=window)
    rank = f"width of the selector's codebooks (default: {sizes.selector_rank})"
    parser.add_argument("--selector-rank", type=int, default=sizes.selector_rank, help=rank)
    parser.add_argument(
        "--mask-token-id", type=int, default=None, help="token that stands for a slot to fill (default: the last)"
    )
    dtype = "dtype of the written tensors (default: bfloat16)"
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16", help=dtype)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Write the draft; 0, or 2 with the problem on stderr."""
    sizes = DraftSizes(args.layers, args.taps, args.block_size, args.window, args.selector_rank, args.mask_token_id)
    try:
        num_params = init_draft(args.target, args.out, sizes, DTYPES[args.dtype], args.seed)
    except (MetadataError, ValueError, OSError) as error:
        print(f"paceline draft init: {error}", file=sys.stderr)
        return 2
    print(f"{args.out}: a random draft of {num_params / 1e6:.1f} M parameters for {args.target}")
    return 0


def init_draft(target: str, out: Path, sizes: DraftSizes, dtype: torch.dtype, seed: int) -> int:
    """Write a random draft for the target at a location; returns its number of parameters.

    Raises ValueError with every rule that the draft would break, before anything is written.
    """
    facts = read_target(target)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty; name a folder to create")
    content = draft_content(facts, sizes)
    tensors = random_tensors(content, dtype, seed)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(content, indent=2) + "\n")
    return sum(tensor.numel() for tensor in tensors.values())


def draft_content(target: TargetFacts, sizes: DraftSizes) -> dict[str, Any]:
    """The `config.json` of a draft; its attention has the target's heads where the kernels can take them."""
    taps = sizes.target_layer_ids or spread_taps(target.num_layers, sizes.num_layers)
    content = {
        "architectures": [DFLASH2_ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim if is_power_of_two(target.head_dim) else 64,
        "intermediate_size": target.intermediate_size or 3 * target.hidden_size,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_positions,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": target.rope.theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "layer_types": [SLIDING_ATTENTION] * sizes.num_layers,
        "use_sliding_window": True,
        "sliding_window": sizes.sliding_window,
        "max_window_layers": 0,
        "is_causal": False,
        "num_target_layers": target.num_layers,
        "dflash_config": {
            "block_size": sizes.block_size,
            "target_layer_ids": list(taps),
            "mask_token_id": target.vocab_size - 1 if sizes.mask_token_id is None else sizes.mask_token_id,
            "conv_kernel_size": 2,
            "conv_group_size": _largest_power_of_two_divisor(target.hidden_size, 16),
            "selector_rank": sizes.selector_rank,
            "selector_top_k": 1 << (min(target.vocab_size, 16).bit_length() - 1),
        },
    }
    problems = check(target, draft_facts("draft", content, {}), Options()).errors
    if broken := [p for p in problems if p.rule.startswith("draft.") and p.rule not in ("draft.tensors", "draft.codebooks")]:
        raise ValueError("; ".join(map(str, broken)))
    return content


def random_tensors(content: dict[str, Any], dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Weights that keep the scale of what they transform: unit norms, identity convolutions with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(draft_facts("draft", content, {}))
    return {name: _random_tensor(name, shape, generator).to(dtype) for name, shape in shapes.items()}


def spread_taps(num_target_layers: int, num_taps: int) -> tuple[int, ...]:
    """Different target layers from the second to the fourth last, as released drafts have them; fewer in tiny targets."""
    first, last = min(1, num_target_layers - 1), max(num_target_layers - 4, min(1, num_target_layers - 1))
    if num_taps == 1:
        return (num_target_layers // 2,)
    steps = max(num_taps - 1, 1)
    return tuple(sorted({round(first + index * (last - first) / steps) for index in range(num_taps)}))


def _random_tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    noise = torch.randn(shape, generator=generator)
    if name.endswith("base_kernel"):
        noise.mul_(0.02)[:, 0] += 1
        return noise
    return noise.mul_(float(shape[-1]) ** -0.5)


def _largest_power_of_two_divisor(number: int, limit: int) -> int:
    return min(number & -number, limit)


def _layer_ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
