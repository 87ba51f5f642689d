"""Tiny DFlash 2 drafts as the `dflash` package builds them, the same weights in ours, and a target that is a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from dflash.model import DFlash2DraftModel, _crop_to, _make_cache, _raw_input_embeddings
from transformers import Qwen3Config

from paceline_compat.facts.checkpoint import draft_facts, target_facts
from paceline_compat.facts.records import WholeDraft
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.batch import Chunk, ForwardBatch, PrefillBatch, VerifyBatch
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.speculative.base import DraftInputs
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.proposer import DFlashProposer


def draft_content(**changes: Any) -> dict[str, Any]:
    """The `config.json` of a small draft; DFlash fields go into `dflash_config`."""
    content: dict[str, Any] = {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 64,
        "vocab_size": 96,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 0,
        "is_causal": False,
        "num_target_layers": 8,
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": 95,
            "target_layer_ids": [1, 3, 6],
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 16,
            "selector_top_k": 4,
        },
    }
    nested = {name: changes.pop(name) for name in list(changes) if name in content["dflash_config"]}
    content |= changes
    content["dflash_config"] |= nested
    content["layer_types"] = ["sliding_attention"] * content["num_hidden_layers"]
    return content


def oracle_draft(content: dict[str, Any], seed: int = 1, dtype: torch.dtype = torch.float64) -> DFlash2DraftModel:
    """The package's model with lively random weights; fresh, its convolutions hold uninitialised memory."""
    generator = torch.Generator().manual_seed(seed)
    model = DFlash2DraftModel(Qwen3Config(**content)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "base_kernel" in name:
                parameter.copy_(0.2 * noise)
                parameter[:, 0] += 1
            elif parameter.ndim == 1:
                parameter.copy_(1 + 0.2 * noise)
            else:
                parameter.copy_(noise * (0.5 if "codebook" in name else parameter.shape[-1] ** -0.5))
    frequencies = model.rotary_emb.inv_freq.clone()
    model.to(dtype).rotary_emb.inv_freq = frequencies  # `to` would round it, which loading in a dtype does not
    return model


def our_draft(oracle: DFlash2DraftModel, content: dict[str, Any], dtype: torch.dtype = torch.float64) -> Draft:
    """The same weights in our draft."""
    facts = draft_facts("draft", content, {})
    config = WholeDraft.of(facts)
    stored = {name.replace("codebook.weight", "codebook"): tensor for name, tensor in oracle.state_dict().items()}
    parameters = Parameters(dtype, torch.device("cpu"))
    draft = Draft(config, parameters)
    fill_places(parameters, stored)
    return draft


def fill_places(parameters: Parameters, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill memory from tensors by name; those that nothing asks for are passed over."""
    for name, place in parameters.places.items():
        place.fill(tensors[name])


class TableTarget:
    """A `TargetModel` of an embedding and a head, for tests that make up what the layers gave.

    `head` is also what the oracle wants of a target: `get_input_embeddings()` and `lm_head`.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        dtype: torch.dtype = torch.float64,
        num_layers: int = 8,
        device: str = "cpu",
    ) -> None:
        generator = torch.Generator(device).manual_seed(2)
        self.dtype, self.device = dtype, torch.device(device)
        self.embedding = torch.randn(vocab_size, hidden_size, generator=generator, device=device).to(dtype)
        self.head = torch.randn(vocab_size, hidden_size, generator=generator, device=device).to(dtype)
        sizes = {"num_hidden_layers": num_layers, "hidden_size": hidden_size, "vocab_size": vocab_size}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 16}
        config = {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 512, "eos_token_id": 1, **sizes, **heads}
        self.facts = target_facts("table", config, {})

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding[ids]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.head.T

    def for_oracle(self) -> SimpleNamespace:
        return SimpleNamespace(
            get_input_embeddings=lambda: SimpleNamespace(weight=self.embedding), lm_head=lambda hidden: self.logits(hidden)
        )


class OracleRun:
    """The package's draft with its own cache, stepped as `dflash_generate` steps it."""

    def __init__(self, model, target: TableTarget) -> None:
        self.model, self.target = model, target.for_oracle()
        self.cache = _make_cache(model.config)

    def propose(self, features: torch.Tensor, anchor: int, length: int, num_steps: int, temperature: float = 0.0):
        """Hidden of the slots and what `propose` returns; features [N, taps, H] are the context that is new."""
        ids = torch.tensor([[anchor] + [self.model.mask_token_id] * num_steps])
        hidden = self.model(
            target_hidden=features.flatten(1)[None],
            noise_embedding=_raw_input_embeddings(self.target, ids),
            position_ids=torch.arange(length - features.shape[0], length + num_steps + 1)[None],
            past_key_values=self.cache,
            use_cache=True,
        )[:, 1:]
        _crop_to(self.cache, length)
        return hidden, *self.model.propose(hidden, ids[:, 0], self.target.lm_head, temperature)


class Harness:
    """Drives a proposer as the executor does, with made-up layer outputs; each request row owns a run of pages."""

    def __init__(self, draft: Draft, target: TableTarget, num_steps: int, num_rows: int = 4, num_pages: int = 64) -> None:
        self.proposer = DFlashProposer(draft, target, num_steps)
        self.device = draft.device
        layout = MemoryLayout(self.proposer.buffers, num_pages=num_pages, num_seats=num_rows)
        self.proposer.bind(allocate(layout, self.device))
        self.plane = self.proposer.plane
        self.taps = draft.config.target_layer_ids

    def prefill(self, row: int, pages: Sequence[int], start: int, features: torch.Tensor) -> None:
        """One chunk from position `start` on; features: [N, taps, H]."""
        num_tokens = features.shape[0]
        batch = PrefillBatch(**self._fields(row, pages, start, num_tokens), chunks=(Chunk(0, num_tokens, start),))
        self._tell(batch, features)

    def verify(self, row: int, pages: Sequence[int], length: int, features: torch.Tensor) -> None:
        """The rows of one verify, accepted or not; features: [W, taps, H]."""
        width = features.shape[0]
        self._tell(VerifyBatch(**self._fields(row, pages, length, width), width=width), features)

    def propose(self, row: int, pending: int, length: int, temperature: float = 0.0, seed: int = 0):
        """The proposal for one request."""
        inputs = draft_inputs([row], [pending], [length], [temperature], [seed], device=self.device)
        return self.proposer.propose(inputs)

    def _tell(self, batch: ForwardBatch, features: torch.Tensor) -> None:
        sink = self.proposer.sink(batch)
        for layer in range(max(self.taps) + 1):
            if sink.wants(layer):
                sink.layer_output(layer, features[:, self.taps.index(layer)])
        self.proposer.on_rows(batch, sink, features[:, 0])

    def _fields(self, seat, pages, start, num_tokens) -> dict[str, torch.Tensor]:
        positions = torch.arange(start, start + num_tokens, device=self.device)
        table = torch.tensor([list(pages)], device=self.device)
        return dict(
            ids=torch.zeros_like(positions),
            positions=positions,
            cells=table[0][positions // PAGE_TOKENS] * PAGE_TOKENS + positions % PAGE_TOKENS,
            active=torch.ones_like(positions, dtype=torch.bool),
            seats=torch.tensor([seat], device=self.device),
            page_table=table,
            lengths=torch.tensor([start], device=self.device),
        )


def draft_inputs(
    seats: list[int],
    pending: list[int],
    lengths: list[int],
    temperature: list[float],
    seeds: list[int],
    device: str | torch.device = "cpu",
) -> DraftInputs:
    """Inputs of `propose` for B requests; the draft reads neither history nor pages."""
    return DraftInputs(
        seats=torch.tensor(seats, device=device),
        pending=torch.tensor(pending, device=device),
        lengths=torch.tensor(lengths, device=device),
        history=torch.zeros(max(seats) + 1, 1, dtype=torch.int64, device=device),
        page_table=torch.zeros(len(seats), 1, dtype=torch.int64, device=device),
        temperature=torch.tensor(temperature, device=device),
        seeds=torch.tensor(seeds, device=device),
    )


def write_draft(folder: Path, oracle: DFlash2DraftModel, content: dict[str, Any], **renames: str) -> None:
    """A checkpoint folder with released names; `renames` maps parts of tensor names to others."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    tensors = {name.replace("codebook.weight", "codebook"): tensor.clone() for name, tensor in oracle.state_dict().items()}
    for old, new in renames.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
