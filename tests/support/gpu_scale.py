"""Sizes of the GPU suite: real-like on a GPU, tiny on a CPU, so that the same test bodies run in both places."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import build_reference

from paceline_compat.facts.checkpoint import target_facts
from paceline_runtime.bench.subjects import dummy_dflash
from paceline_runtime.loaders import load_target
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.init import DraftSizes, draft_content
from paceline_runtime.speculative.dflash.proposer import DFlashProposer

_REAL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "intermediate_size": 3072,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
}
_REAL_GDN = {
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
_REAL_MOE = {
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
_REAL_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_5": _REAL_GDN,
    "qwen3_5_moe": {**_REAL_GDN, **_REAL_MOE},
}
FAMILIES = tuple(_REAL_FAMILIES)
_SELECTOR = "candidate_selector"


@dataclass(frozen=True)
class Scale:
    """Where a test runs, and which of two sizes that means."""

    device: torch.device

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 in both places: it is what the laws of this suite are about."""
        return torch.bfloat16

    def pick(self, tiny: Any, real: Any) -> Any:
        """The CPU's value or the GPU's."""
        return real if self.is_cuda else tiny

    def sizes(self, family: str, **overrides: Any) -> dict[str, Any]:
        """Config fields of a family's target at this scale; on a CPU those of `tiny_models`."""
        real = {**_REAL, **_REAL_FAMILIES[family]} if self.is_cuda else {}
        return {**real, "eos_token_id": None, **overrides}


@torch.no_grad()
def save_predictable(family: str, folder: Path, scale: Scale, *, strength: float = 1.0, **overrides: Any) -> Path:
    """A random target whose head leans towards a fixed successor of the current token, as trained models lean.

    A head of pure noise gives logits whose best two are closer than bfloat16 tells apart on one row in a hundred, and a law
    about near ties would be about nothing else.
    """
    model = build_reference(family, dtype=torch.float32, scale=0.3, **scale.sizes(family, **overrides))
    embedding, head = model.get_input_embeddings().weight, model.lm_head.weight
    hidden = embedding.shape[1]
    embedding.mul_(strength * hidden**0.25)  # keeps the token visible below what the layers add
    head.normal_(0.0, hidden**-0.5)
    head += embedding[torch.arange(len(head)).roll(1)] * (hidden**-0.5 / embedding.std()) * scale.pick(4.0, 1.5)
    path = folder / family
    model.to(torch.bfloat16).save_pretrained(path)
    return path


def load_predictable(family: str, folder: Path, scale: Scale, **overrides: Any) -> TargetModel:
    """`save_predictable`, loaded onto the scale's device in its dtype."""
    return load_target(save_predictable(family, folder, scale, **overrides), dtype=scale.dtype, device=scale.device)


def random_dflash(path: Path, target: TargetModel, num_steps: int, *, window: int = 2048) -> DFlashProposer:
    """A draft with random weights that fits the target saved at `path`."""
    facts = target_facts(path.name, json.loads((path / "config.json").read_text()), {})
    content = draft_content(facts, DraftSizes(sliding_window=window, selector_rank=32))
    return dummy_dflash(content, target, num_steps)


@torch.no_grad()
def teach_successors(draft: Path, target: Path) -> None:
    """Let a saved random draft know the successors towards which its predictable target leans.

    Its layers are made faint, so that a slot's hidden row is the mask's embedding. The selector turns that into ones, and its
    codebooks give every token a code of signs: a predecessor carries the code of the token after it.
    """
    content, tensors = json.loads((draft / "config.json").read_text()), load_file(draft / "model.safetensors")
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    mask = embedding[content["dflash_config"]["mask_token_id"]].float()
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.mul_(0.1)
    projection = tensors[f"{_SELECTOR}.hidden_projection.weight"]
    projection.copy_((mask / mask.norm() / len(mask) ** 0.5).expand_as(projection))
    codes = torch.randn(len(embedding), len(projection), generator=torch.Generator().manual_seed(4)).sign()
    tensors[f"{_SELECTOR}.successor_codebook"].copy_(codes)
    tensors[f"{_SELECTOR}.predecessor_codebook"].copy_(4.0 * codes.roll(-1, 0))  # the mask has likely successors of its own
    content["dflash_config"]["selector_top_k"] = len(embedding)
    save_file(tensors, draft / "model.safetensors", metadata={"format": "pt"})
    (draft / "config.json").write_text(json.dumps(content))


def relative_rms(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference, relative to the expected values'; NaN fails every bound."""
    found, expected = found.double(), expected.double()
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
