"""The MTP head of the hybrid families: one decoder layer over pairs of a hidden row and the token after it.

Called by the proposer, which keeps its K/V. A pair's input is `fc` of both, normed, the embedding first; embedding and head are
the target's. Tensors `mtp.*`; the one layer is always full attention, its MLP the family's. All norms are zero-centred.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory import PAGE_TOKENS
from paceline_kernels.paged_attention import verify_attention, verify_context, write_pages
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.hybrid import HybridDecoder, gated_attention

LAYER = "mtp.layers.0"
FIRST_SLOT = 1
"""Slot 0 would pair the first token with a hidden row before it, which there is none of."""


@dataclass(frozen=True)
class MtpPlanes:
    """Pages of the head: keys, values [num_pages, PAGE_TOKENS, Hkv, D], the hidden row at each page's end [num_pages, H]."""

    keys: torch.Tensor
    values: torch.Tensor
    page_ends: torch.Tensor


@dataclass(frozen=True)
class Seen:
    """What B pairs see: slots up to `lengths` int64 [B] of their pages int64 [B, P]; `active` bool [B] may reach experts."""

    page_table: torch.Tensor
    lengths: torch.Tensor
    active: torch.Tensor


class MtpHead:
    """Weights in memory that the loader fills."""

    def __init__(self, target: HybridDecoder, parameters: Parameters) -> None:
        config, hidden = target.config, target.config.hidden_size
        self.target, self.parameters = target, parameters
        names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        self._embedding_norm, self._hidden_norm, self._norm = (
            parameters.norm(name, hidden, config.norm_eps, zero_centred=True) for name in names
        )
        self._fc = parameters.linear({"mtp.fc": hidden}, 2 * hidden, split=None)
        self._mixer_norm = parameters.norm(f"{LAYER}.input_layernorm", hidden, config.norm_eps, zero_centred=True)
        self._mlp_norm = parameters.norm(f"{LAYER}.post_attention_layernorm", hidden, config.norm_eps, zero_centred=True)
        self._attention = gated_attention(config, f"{LAYER}.self_attn", 0, parameters)
        self._mlp = target.make_mlp(f"{LAYER}.mlp", parameters)

    def write(
        self, ids: torch.Tensor, hidden: torch.Tensor, cells: torch.Tensor, positions: torch.Tensor, planes: MtpPlanes
    ) -> None:
        """Keep K/V of pairs (hidden [N, H], token id [N]) at cells int64 [N]; nothing else of a pair outlives it."""
        _, k, v, _ = self._project(self._pair(ids, hidden), positions)
        write_pages(planes.keys, planes.values, cells, k, v)

    def step(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        cells: torch.Tensor,
        positions: torch.Tensor,
        planes: MtpPlanes,
        seen: Seen,
    ) -> torch.Tensor:
        """One pair of each of B requests through the layer, its K/V kept: hidden rows [B, H] for the target's head."""
        x = self._pair(ids, hidden)
        q, k, v, gate = self._project(x, positions)
        write_pages(planes.keys, planes.values, cells, k, v)
        context = verify_context(seen.page_table, seen.lengths, 1, PAGE_TOKENS, q.dtype, FIRST_SLOT)
        attended = verify_attention(q[:, None], planes.keys, planes.values, context, self._attention.scale)
        x, normed = self._mlp_norm.add(x, self._attention.finish(attended[:, 0], gate))
        return self._norm.add(x, self._mlp(normed, seen.active))[1]

    def _pair(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        embedding = self._embedding_norm(self.target.embed(ids))
        return self._fc(torch.cat((embedding, self._hidden_norm(hidden)), dim=-1))

    def _project(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self._attention.project(self._mixer_norm(x), self.target.rotary.table(positions))
