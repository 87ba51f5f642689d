"""The DFlash 2 proposer: it keeps what target rows give the draft, and drafts a block per request and step.

The device's programs call it in a launch, so it reads nothing back to the host. Context rows live in the target's pages, which
is why a prefix hit at any boundary brings the draft's window with it; keys and values live in a ring per seat.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_compat.memory.buffers import dflash_buffers
from paceline_compat.memory.parts import tapped_row_bytes
from paceline_runtime.batch import ForwardBatch, VerifyBatch
from paceline_runtime.cache.allocation import dtype_name
from paceline_runtime.models.base import FeatureSink, TargetModel
from paceline_runtime.speculative.base import DraftInputs, Proposal
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.ring import ContextRings
from paceline_runtime.speculative.dflash.taps import TapSum


class DFlashProposer:
    """Implements `Proposer`; see there for the life of a seat."""

    name = "dflash"

    def __init__(self, draft: Draft, target: TargetModel, num_drafts: int) -> None:
        self.draft, self.target, self.num_drafts = draft, target, num_drafts
        self.kept_row_bytes = tapped_row_bytes(draft.config, draft.dtype.itemsize)
        self.buffers = dflash_buffers(draft.config, dtype_name(draft.dtype))
        self._rings: ContextRings | None = None
        self._plane: torch.Tensor | None = None

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the pages' plane and the rings."""
        self._plane = tensors["dflash_context"]
        self._rings = ContextRings(self.draft, tensors["dflash_ring_keys"], tensors["dflash_ring_values"])

    def unbind(self) -> None:
        """Let go of the pages' plane and the rings."""
        self._plane = self._rings = None

    @property
    def plane(self) -> torch.Tensor:
        """Context rows by page, [num_pages, PAGE_TOKENS, H]."""
        assert self._plane is not None, "bind comes first"
        return self._plane

    @property
    def rings(self) -> ContextRings:
        """Keys and values of context rows by seat."""
        assert self._rings is not None, "bind comes first"
        return self._rings

    def sink(self, batch: ForwardBatch) -> TapSum:
        """Every row is tapped: any page may be hit later, and `fc` costs little beside the target's layers."""
        return TapSum(self.draft)

    def on_rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        """Write context rows to the pages, and keys and values of those near each request's end to its ring."""
        assert isinstance(sink, TapSum)
        context = self.draft.context_rows(sink.projected)
        self.plane.flatten(0, 1)[batch.cells] = context
        seats, positions, kept = self._ring_rows(batch)
        self.rings.write(seats, positions, context if kept is None else context[kept])

    def on_restore(self, seat: int, pages: torch.Tensor, num_tokens: int) -> None:
        """Rebuild the seat's ring from the pages of its cached prefix."""
        self.rings.restore(seat, self.plane, pages, num_tokens)

    def on_release(self, seat: int) -> None:
        """Nothing to undo: a ring is read by the length of the request that has the seat now."""

    def propose(self, inputs: DraftInputs) -> Proposal:
        """Draft k tokens per request; the block is always 1 + k wide, since its rows depend on the width."""
        draft, rings = self.draft, self.rings
        embeddings = draft.block_embeddings(self.target, inputs.pending, self.num_drafts)
        hidden = draft.forward(embeddings, inputs.lengths, inputs.seats, rings.keys, rings.values)
        candidates = draft.candidates(self.target, hidden[:, 1:])
        tokens, q = draft.select(candidates, inputs.pending, inputs.temperature, inputs.seeds, inputs.lengths)
        return Proposal(tokens=tokens, candidates=candidates.ids, q=q)

    def memory_bytes(self) -> int:
        """Bytes of the draft's weights."""
        return self.draft.memory_bytes()

    def _ring_rows(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Seat and position of the batch's rows that go to the rings, and which rows those are (None: all)."""
        device = batch.seats.device
        if isinstance(batch, VerifyBatch):
            offsets = torch.arange(batch.width, device=device)
            return batch.seats.repeat_interleave(batch.width), (batch.lengths[:, None] + offsets).flatten(), None
        seats, positions, kept = [], [], []
        for index, chunk in enumerate(batch.chunks):
            first = max(0, chunk.num_tokens - self.rings.reach)
            offsets = torch.arange(first, chunk.num_tokens, device=device)
            seats.append(batch.seats[index].expand(offsets.shape))
            positions.append(chunk.start + offsets)
            kept.append(chunk.offset + offsets)
        return torch.cat(seats), torch.cat(positions), torch.cat(kept)
