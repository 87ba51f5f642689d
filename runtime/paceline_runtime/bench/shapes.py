"""The shapes that the bench knows by name: `config.json` contents of targets and of the DFlash 2 drafts released for them.

The bench's command and measurements read them; they are values only. `inferred` lists what no public file confirms: it follows
from parameter counts and sibling models.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline_compat.facts.checkpoint import target_facts
from paceline_runtime.errors import ConfigError

_VOCAB_SIZE = 248320
_HYBRID = {
    "head_dim": 256,
    "vocab_size": _VOCAB_SIZE,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
    "eos_token_id": [248044, 248046],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_DRAFT = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": _VOCAB_SIZE,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "sliding_window": 2048,
    "max_window_layers": 0,
    "is_causal": False,
}
_DFLASH = {"block_size": 8, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}


@dataclass(frozen=True)
class Shape:
    """A target's `config.json` and its draft's; `tokens_per_step` holds published figures by (algorithm, k)."""

    name: str
    target: Mapping[str, Any]
    draft: Mapping[str, Any] | None = None
    tokens_per_step: Mapping[tuple[str, int], float] = field(default_factory=dict)
    inferred: tuple[str, ...] = ()

    @property
    def text(self) -> dict[str, Any]:
        """The text part of the target's config, wherever it is kept."""
        return {**self.target, **self.target.get("text_config", {})}

    def with_layers(self, num_layers: int | None) -> Shape:
        """The shape with fewer target layers; the draft keeps as many taps as fit, spread over those."""
        if num_layers is None:
            return self
        least, most = self.text.get("full_attention_interval", 1), self.text["num_hidden_layers"]
        if not least <= num_layers <= most:
            raise ConfigError([f"--layers must be between {least} (the first with K/V) and {most}, got {num_layers}"])
        target = copy.deepcopy(dict(self.target))
        part = target.get("text_config", target)
        part["num_hidden_layers"] = num_layers
        if "layer_types" in part:
            part["layer_types"] = part["layer_types"][:num_layers]
        return replace(self, target=target, draft=_with_taps(self.draft, num_layers) if self.draft else None)

    def with_positions(self, num_positions: int) -> Shape:
        """The shape with a context of at least `num_positions`: random weights mean nothing at any position."""
        target = copy.deepcopy(dict(self.target))
        part = target.get("text_config", target)
        part["max_position_embeddings"] = max(part.get("max_position_embeddings", 0), num_positions)
        return replace(self, target=target)


def _with_taps(draft: Mapping[str, Any], num_target_layers: int) -> dict[str, Any]:
    """Every tap moved to its share of the depth; taps that meet in one layer become one."""
    nested, depth = draft["dflash_config"], draft["num_target_layers"]
    taps = sorted({tap * num_target_layers // depth for tap in nested["target_layer_ids"]})
    return {**draft, "num_target_layers": num_target_layers, "dflash_config": {**nested, "target_layer_ids": taps}}


def _target(architecture: str, **own: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "vision_config": {}, "text_config": {**_HYBRID, **own}}


def _draft(num_layers: int, taps: list[int], mask_token_id: int, **own: Any) -> dict[str, Any]:
    nested = {**_DFLASH, "target_layer_ids": taps, "mask_token_id": mask_token_id}
    layers = {"num_hidden_layers": num_layers, "layer_types": ["sliding_attention"] * num_layers}
    return {**_DRAFT, **layers, **own, "dflash_config": nested}


SHAPES = {
    "qwen3.8-27b": Shape(
        "qwen3.8-27b",
        _target(
            "Qwen3_5ForConditionalGeneration",
            hidden_size=5120,
            intermediate_size=17408,
            num_hidden_layers=64,
            num_attention_heads=24,
            num_key_value_heads=4,
            linear_num_value_heads=48,
        ),
        _draft(
            5, [5, 19, 33, 47, 61], 248070, hidden_size=5120, intermediate_size=17408, num_target_layers=64
        ),
        {("dflash", 7): 5.47, ("mtp", 7): 4.51},
    ),
    "qwen3.6-35b-a3b": Shape(
        "qwen3.6-35b-a3b",
        _target(
            "Qwen3_5MoeForConditionalGeneration",
            hidden_size=2048,
            num_hidden_layers=40,
            num_attention_heads=16,
            num_key_value_heads=2,
            linear_num_value_heads=32,
            num_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
        ),
        _draft(
            6, [1, 6, 11, 16, 22, 27, 32, 37], 248077, hidden_size=2048, intermediate_size=6144, num_target_layers=40
        ),
        {("dflash", 7): 5.39, ("mtp", 3): 3.25},
        inferred=(
            *("draft.num_attention_heads", "draft.intermediate_size", "draft.rope_theta", "draft.max_position_embeddings"),
            *("draft.conv_kernel_size", "draft.conv_group_size", "draft.selector_rank", "draft.num_target_layers"),
        ),
    ),
    "smollm2-135m": Shape(
        "smollm2-135m",
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": 1e5,
            "tie_word_embeddings": True,
            "eos_token_id": 2,
        },
    ),
}  # fmt: skip


def find_shape(name: str) -> Shape:
    """A known shape, or that of the folder of this name. Raises ConfigError with what would do."""
    if name in SHAPES:
        return SHAPES[name]
    file = Path(name) / "config.json"
    if not file.is_file():
        raise ConfigError([f"--shape {name} is neither one of {', '.join(SHAPES)} nor a folder with a config.json"])
    try:
        content = json.loads(file.read_text())
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        target_facts(str(file), content, {})
    except ValueError as error:
        raise ConfigError([f"--shape {name}: its config.json is no target's: {error}"]) from None
    return Shape(Path(name).name, content)
