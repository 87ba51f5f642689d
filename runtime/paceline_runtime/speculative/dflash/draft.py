"""The DFlash 2 draft: one forward over a block of [anchor, mask x k], then a path through the candidates of its masks.

The proposer and the self-check call it. It refuses to know about pages, requests and rings beyond their tensors. The
method is the DFlash 2 draft as the `dflash` package 0.1.0 publishes it; tests hold this forward against that package.
"""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from paceline_compat.facts.draft_tensors import CODEBOOKS
from paceline_compat.facts.records import WholeDraft
from paceline_kernels.backend import Backend
from paceline_kernels.context_rows import ContextProjection
from paceline_kernels.selector import Candidates, Codebooks, Draws, select_path
from paceline_kernels.top_logits import top_logits
from paceline_runtime.layers.linear import Linear
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.layers.rotary import Rotary
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.draft_layer import Block, DraftLayer, Stream


class Draft:
    """Layers over memory that the loader fills. Embedding and head are the target's; rope, norms and dtype are its own.

    fc:   from the concatenated outputs of all tapped layers to a hidden row
    taps: the part of `fc` for each tapped layer, over the same memory

    `backend` says who computes; the self-check asks for the references.
    """

    def __init__(self, config: WholeDraft, parameters: Parameters, backend: Backend = Backend.AUTO) -> None:
        self.config, self.parameters, self.backend = config, parameters, backend
        self.dtype, self.device = parameters.dtype, parameters.device
        hidden, eps, rank = config.hidden_size, config.rms_norm_eps, config.selector_rank
        kv_rows = config.num_kv_heads * config.head_dim
        # There is no table of positions: whatever context the target allows, nothing can overrun the draft's own limit.
        self.rotary = Rotary(config.rope, config.head_dim, self.dtype, self.device)
        fc = parameters.weight("fc", hidden, len(config.target_layer_ids) * hidden)
        parts = {layer: slice(index * hidden, (index + 1) * hidden) for index, layer in enumerate(config.target_layer_ids)}
        self.fc, self.taps = Linear(fc), {layer: Linear(fc.take(columns=part)) for layer, part in parts.items()}
        self._hidden_norm = parameters.norm("hidden_norm", hidden, eps)
        kv_names = [f"layers.{index}.self_attn.{part}_proj" for index in range(config.num_layers) for part in "kv"]
        self._key_value = parameters.linear(dict.fromkeys(kv_names, kv_rows), hidden, split="rows")
        self.layers = [
            DraftLayer(config, index, self._key_value.rows(2 * index * kv_rows, 2 * (index + 1) * kv_rows), parameters)
            for index in range(config.num_layers)
        ]
        self._norm = parameters.norm("norm", hidden, eps)
        self._selector = parameters.linear({"candidate_selector.hidden_projection": rank}, hidden, split=None)
        self.codebooks = Codebooks(*(parameters.tensor(name, config.vocab_size, rank) for name in CODEBOOKS))

    def computed_by(self, backend: Backend) -> Draft:
        """The same draft over the same memory, with other kernels."""
        twin = copy.copy(self)
        twin.backend = backend
        return twin

    def context_rows(self, taps: torch.Tensor) -> torch.Tensor:
        """Context rows [N, H] from the tapped layers' projected sum [N, H]."""
        return self._hidden_norm(taps.to(self.dtype))

    def context_projection(self) -> ContextProjection:
        """What turns context rows into keys and values of all layers."""
        key_norms = torch.stack([layer.k_norm.weight for layer in self.layers])
        return ContextProjection(self._key_value, key_norms, self.rotary.inverse_frequencies, self.config.rms_norm_eps)

    def block_embeddings(self, target: TargetModel, anchors: torch.Tensor, num_drafts: int) -> torch.Tensor:
        """Embeddings [B, 1 + k, H] of the anchors int64 [B], each followed by k masks."""
        ids = functional.pad(anchors[:, None], (0, num_drafts), value=self.config.mask_token_id)
        return target.embed(ids).to(self.dtype)

    def forward(
        self,
        embeddings: torch.Tensor,
        lengths: torch.Tensor,
        seats: torch.Tensor,
        ring_keys: torch.Tensor,
        ring_values: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [B, W, H] of blocks, final norm applied.

        embeddings: [B, W, H]; lengths: int64 [B], position of each anchor; seats: int64 [B], whose ring each block sees
        ring_keys, ring_values: [L, num_seats, R, Hkv, D], see `paceline_kernels.window_attention`
        """
        positions = (lengths[:, None] + torch.arange(embeddings.shape[1], device=lengths.device)).flatten()
        table, window = self.rotary.table(positions, backend=self.backend), self.config.sliding_window
        block = Block(table, lengths, seats, ring_keys, ring_values, window, self.backend)
        stream: Stream = embeddings.flatten(0, 1), None
        for layer in self.layers:
            stream = layer(stream, block)
        return self._norm.add(*stream, backend=self.backend)[1].view_as(embeddings)

    def candidates(self, target: TargetModel, hidden: torch.Tensor) -> Candidates:
        """The likeliest ids of masks [B, k, H] under the target's own head."""
        logits = target.logits(hidden.flatten(0, 1).to(target.dtype))
        unary, ids = top_logits(logits, self.config.selector_top_k, backend=self.backend)
        shape = (*hidden.shape[:2], -1)
        return Candidates(ids.view(shape), unary.view(shape), self._selector(hidden))

    def select(
        self,
        candidates: Candidates,
        anchors: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        lengths: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One path through the candidates: tokens int64 [B, k] and q [B, k, C]."""
        num_drafts = candidates.ids.shape[1]
        positions = lengths[:, None] + torch.arange(1, num_drafts + 1, device=lengths.device)
        return select_path(
            candidates=candidates,
            codebooks=self.codebooks,
            anchors=anchors,
            draws=Draws(temperature, seeds, positions),
            backend=self.backend,
        )

    def memory_bytes(self) -> int:
        """Bytes of weights held on the device."""
        return self.parameters.memory_bytes()
