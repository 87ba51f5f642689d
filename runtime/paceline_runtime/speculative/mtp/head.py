"""The MTP head of the hybrid families: one decoder layer over pairs of a hidden row and the token after it.

The proposer calls it and keeps its K/V. A pair's input is `fc` of both, normed, the embedding first; embedding and head are the
target's. Its tensors are `mtp.*`; its one layer has full attention and the family's MLP. All norms are zero-centred. It knows
no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.paged_attention import verify_attention, verify_context, write_pages
from paceline_kernels.rotary import RotaryTable
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.decoder import Decoder, DecoderLayer
from paceline_runtime.models.hybrid import gated_attention

LAYER = "mtp.layers.0"
FIRST_PAIR = 1
"""Pair 0 would hold the first token and a hidden row before it, but there is no such row."""


@dataclass(frozen=True)
class MtpPlanes:
    """Pages of the head: keys, values [num_pages, PAGE_TOKENS, Hkv, D], the hidden row at each page's end [num_pages, H]."""

    keys: torch.Tensor
    values: torch.Tensor
    page_ends: torch.Tensor


@dataclass(frozen=True)
class Seen:
    """What B pairs see: pairs up to `lengths` int64 [B] in their pages int64 [B, P]; `active` bool [B] may reach experts."""

    page_table: torch.Tensor
    lengths: torch.Tensor
    active: torch.Tensor


@dataclass(frozen=True)
class _PairContext:
    """What the layer asks of B pairs: where their K/V go, and what they see."""

    rotary: RotaryTable
    cells: torch.Tensor
    planes: MtpPlanes
    seen: Seen

    @property
    def active(self) -> torch.Tensor:
        """Pairs that may reach experts."""
        return self.seen.active


class MtpHead:
    """Weights in memory that the loader fills."""

    def __init__(self, target: Decoder, parameters: Parameters) -> None:
        facts, hidden = target.facts, target.facts.hidden_size
        self.target, self.parameters = target, parameters
        names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
        self._embedding_norm, self._hidden_norm, self._norm = (
            parameters.norm(name, hidden, facts.rms_norm_eps, zero_centred=True) for name in names
        )
        self._fc = parameters.linear({"mtp.fc": hidden}, 2 * hidden, split=None)
        self._attention = gated_attention(facts, f"{LAYER}.self_attn", 0, parameters)
        self._layer = DecoderLayer(facts, target.recipe, LAYER, self._attend, parameters)

    def write(
        self, ids: torch.Tensor, hidden: torch.Tensor, cells: torch.Tensor, positions: torch.Tensor, planes: MtpPlanes
    ) -> None:
        """Keep K/V of pairs (hidden [N, H], token id [N]) at cells int64 [N]; nothing else of a pair outlives it."""
        x, rotary = self._layer.mixer_norm(self._pair(ids, hidden)), self.target.rotary.table(positions)
        _, k, v, _ = self._attention.project(x, rotary)
        write_pages(planes.keys, planes.values, cells, k, v)

    def forward(
        self,
        ids: torch.Tensor,
        hidden: torch.Tensor,
        cells: torch.Tensor,
        positions: torch.Tensor,
        planes: MtpPlanes,
        seen: Seen,
    ) -> torch.Tensor:
        """One pair of each of B requests through the layer, its K/V kept: hidden rows [B, H] for the target's head."""
        context = _PairContext(self.target.rotary.table(positions), cells, planes, seen)
        return self._norm.add(*self._layer(self._pair(ids, hidden), None, context))[1]

    def _pair(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        embedding = self._embedding_norm(self.target.embed(ids))
        return self._fc(torch.cat((embedding, self._hidden_norm(hidden)), dim=-1))

    def _attend(self, x: torch.Tensor, context: _PairContext) -> torch.Tensor:
        seen, planes = context.seen, context.planes
        q, k, v, gate = self._attention.project(x, context.rotary)
        write_pages(planes.keys, planes.values, context.cells, k, v)
        verify = verify_context(seen.page_table, seen.lengths, 1, PAGE_TOKENS, q.dtype, FIRST_PAIR)
        scale = self._attention.scale
        attended = verify_attention(q[:, None], planes.keys, planes.values, verify, scale, gate[:, None])
        return self._attention.out.to_be_added(attended.flatten(1))
