"""Tiny random checkpoints of the supported families, and batches over a page store to run them with.

`save_tiny` writes what `save_pretrained` of transformers writes; `reference` is that model, the oracle. Weights are spread
more widely than transformers' defaults, under which a tiny model's logits are nearly flat.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import transformers

from paceline_compat.facts.records import TargetFacts
from paceline_compat.memory.buffers import target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import Chunk, ForwardBatch, PrefillBatch, VerifyBatch
from paceline_runtime.cache.allocation import allocate, dtype_name
from paceline_runtime.cache.pages import PageStore
from paceline_runtime.models.base import TargetMemory, TargetModel

VOCAB_SIZE = 512

_BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_GDN = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_GDN_ROPE = dict(_ROPE, partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True)
_MOE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
_FAMILIES = {
    "llama": ("Llama", "LlamaConfig", {}),
    "mistral": ("Mistral", "MistralConfig", {"sliding_window": None}),
    "qwen2": ("Qwen2", "Qwen2Config", {}),
    "qwen3": ("Qwen3", "Qwen3Config", {}),
    "qwen3_5": ("Qwen3_5", "Qwen3_5TextConfig", dict(_GDN, rope_parameters=_GDN_ROPE)),
    "qwen3_5_moe": ("Qwen3_5Moe", "Qwen3_5MoeTextConfig", dict(_GDN, **_MOE, rope_parameters=_GDN_ROPE)),
}


def build_reference(name: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, scale: float = 0.3, **overrides):
    """A random transformers model of the family, in eval mode; `overrides` go to its config."""
    class_name, config_name, own = _FAMILIES[name]
    fields = {**_BASE, "rope_parameters": _ROPE, **own, **overrides}
    fields["rope_parameters"] = dict(fields["rope_parameters"])
    torch.manual_seed(seed)
    model = getattr(transformers, f"{class_name}ForCausalLM")(getattr(transformers, config_name)(**fields)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                wide = 1.0 if "embed" in parameter_name else scale / (parameter.shape[-1] / 64) ** 0.5
                parameter.normal_(0, wide)
            elif "norm" in parameter_name or "bias" in parameter_name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def save_tiny(name: str, folder: Path, dtype: torch.dtype = torch.float64, seed: int = 0, **overrides) -> Path:
    """Write a tiny checkpoint of the family to `folder / name`; no tokenizer."""
    path = Path(folder) / name
    build_reference(name, dtype=dtype, seed=seed, **overrides).save_pretrained(path)
    return path


def reference(path: Path, dtype: torch.dtype = torch.float64, **fields):
    """The transformers model of a saved checkpoint, perhaps with other fields in its config.

    Its experts one by one, since torch groups no float64 products.
    """
    options = {"dtype": dtype, "experts_implementation": "eager", **fields}
    return transformers.AutoModelForCausalLM.from_pretrained(path, **options).eval()


@dataclass
class TinyCache:
    """A page store with `num_requests` requests of up to `max_tokens`, pages dealt out of order; page 0 is the dummy."""

    facts: TargetFacts
    dtype: torch.dtype
    num_requests: int = 1
    max_tokens: int = 256
    page_table: torch.Tensor = field(init=False)
    memory: TargetMemory = field(init=False)

    def __post_init__(self):
        per_request = -(-self.max_tokens // PAGE_TOKENS)
        num_pages = 1 + self.num_requests * per_request
        self.page_table = torch.arange(num_pages - 1, 0, -1).view(self.num_requests, per_request)
        layout = MemoryLayout(target_buffers(self.facts, dtype_name(self.dtype), 0), num_pages=num_pages)
        self.memory = TargetMemory(PageStore(allocate(layout, torch.device("cpu"))))

    def cells(self, request: int, positions: torch.Tensor) -> torch.Tensor:
        """Cells of one request's positions."""
        return self.page_table[request, positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS

    def with_states(self, states) -> TinyCache:
        """The same pages beside a pool of recurrent states."""
        self.memory = replace(self.memory, states=states)
        return self


def tiny_prefill(cache: TinyCache, chunks: list[tuple[int, int, list[int]]]) -> PrefillBatch:
    """A prefill of chunks (request, start, ids)."""
    positions = [torch.arange(start, start + len(ids)) for _, start, ids in chunks]
    offsets = [sum(len(ids) for _, _, ids in chunks[:index]) for index in range(len(chunks))]
    requests = torch.tensor([request for request, _, _ in chunks])
    return PrefillBatch(
        ids=torch.tensor([token for _, _, ids in chunks for token in ids]),
        positions=torch.cat(positions),
        cells=torch.cat([cache.cells(chunk[0], at) for chunk, at in zip(chunks, positions, strict=True)]),
        active=torch.ones(sum(len(at) for at in positions), dtype=torch.bool),
        seats=requests + 1,
        page_table=cache.page_table[requests],
        lengths=torch.tensor([start for _, start, _ in chunks]),
        chunks=tuple(Chunk(at, len(ids), start) for at, (_, start, ids) in zip(offsets, chunks, strict=True)),
    )


def tiny_verify(cache: TinyCache, rows: list[tuple[int, int, list[int]]]) -> VerifyBatch:
    """A verify of rows (request, length, ids), as many ids for each; a decode step is one id each."""
    width = len(rows[0][2])
    requests, lengths = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    positions = lengths[:, None] + torch.arange(width)
    return VerifyBatch(
        ids=torch.tensor([row[2] for row in rows]).flatten(),
        positions=positions.flatten(),
        cells=torch.cat([cache.cells(row[0], at) for row, at in zip(rows, positions, strict=True)]),
        active=torch.ones(positions.numel(), dtype=torch.bool),
        seats=requests + 1,
        page_table=cache.page_table[requests],
        lengths=lengths,
        width=width,
    )


class TapRecorder:
    """A `FeatureSink` that keeps the outputs of the given layers."""

    def __init__(self, layers: list[int]) -> None:
        self.layers = layers
        self.outputs: dict[int, torch.Tensor] = {}

    def wants(self, layer: int) -> bool:
        return layer in self.layers

    def layer_output(self, layer: int, hidden: torch.Tensor) -> None:
        self.outputs[layer] = hidden.clone()


def logits_of(model: TargetModel, batch: ForwardBatch, cache: TinyCache) -> torch.Tensor:
    """Logits [N, V] of every row of a batch."""
    return model.logits(model.forward(batch, cache.memory))
