"""The MTP proposer: it drafts with the target's own head, token after token.

The device's programs call it in a launch, so it reads nothing back to the host. The head's K/V hold pair i, which is (hidden
row i - 1, token i), at rope position i - 1: a page depends on no later token, and a prefix hit brings the head's K/V with it.
Pair 0 has no hidden row before it and is masked. Drafting writes pairs made of the head's own output; after the verify, pairs
of accepted drafts are written anew from the target's hidden rows, and the next block overwrites those of rejected drafts.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_compat.memory.buffers import mtp_buffers
from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.counter_random import PROPOSAL, gumbel
from paceline_runtime.batch import ForwardBatch, VerifyBatch
from paceline_runtime.cache.allocation import dtype_name
from paceline_runtime.models.base import FeatureSink
from paceline_runtime.speculative.base import DraftInputs, Proposal
from paceline_runtime.speculative.mtp.head import MtpHead, MtpPlanes, Seen

_NUM_CANDIDATES = 16
"""q is supported on so many ids: few enough that accepting costs nothing, and all that matter."""


def draw(
    logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A draft for each position int64 [B] from logits [B, V]: token [B], candidates [B, C], and q [B, C] it was drawn from.

    Only the request's temperature shapes q: top-k and top-p cut p, and a draft that p excludes is rejected. Greedy rows
    (temperature 0) take the likeliest.
    """
    scores, ids = logits.topk(min(_NUM_CANDIDATES, logits.shape[-1]), dim=-1)
    is_sampled = temperature > 0
    # The maximum comes off before the division: with the smallest temperatures the quotients would overflow.
    q = ((scores - scores[:, :1]).to(torch.float64) / torch.where(is_sampled, temperature, 1.0)[:, None]).softmax(-1)
    noise = gumbel(seeds[:, None], positions[:, None], PROPOSAL, ids)
    index = torch.where(is_sampled, (q.log() + noise).argmax(-1), 0)
    return ids.gather(1, index[:, None])[:, 0], ids, q


class MtpProposer:
    """Implements `Proposer`; see there for the life of a seat.

    Nobody knows yet which of a verify's rows will be committed when they are computed. So the proposer keeps all their hidden
    rows by seat, with the position of the first, and finds the one before the pending token by its position.
    """

    name = "mtp"
    kept_row_bytes = 0

    def __init__(self, head: MtpHead, num_drafts: int) -> None:
        self.head, self.num_drafts = head, num_drafts
        self.buffers = mtp_buffers(head.target.facts, dtype_name(head.target.dtype), num_drafts)
        self._planes: MtpPlanes | None = None
        self._hidden = self._first = torch.empty(0)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the planes, and the hidden rows of each request's last forward: [S, 1 + k, H], first position [S]."""
        self._planes = MtpPlanes(tensors["mtp_keys"], tensors["mtp_values"], tensors["mtp_page_ends"])
        self._hidden, self._first = tensors["mtp_hidden"], tensors["mtp_first"]

    def unbind(self) -> None:
        """Let go of the planes and the hidden rows."""
        self._planes = None
        self._hidden = self._first = torch.empty(0)

    def sink(self, batch: ForwardBatch) -> FeatureSink | None:
        """No layer is tapped: the head reads what goes to the target's head."""
        return None

    def on_rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        """Write the pairs that the rows complete, and keep the hidden rows that the next pairs need."""
        previous = self._previous(batch, hidden)
        self.head.write(batch.ids, previous, batch.cells, (batch.positions - 1).clamp(min=0), self.pages)
        at_end = batch.active & (batch.cells % PAGE_TOKENS == PAGE_TOKENS - 1)
        self.pages.page_ends[torch.where(at_end, batch.cells // PAGE_TOKENS, 0)] = hidden
        if isinstance(batch, VerifyBatch):
            self._hidden[batch.seats, : batch.width] = hidden.view(-1, batch.width, hidden.shape[-1])
            self._first[batch.seats] = batch.lengths
        else:
            lasts = [chunk.offset + chunk.num_tokens - 1 for chunk in batch.chunks]
            self._hidden[batch.seats, 0] = torch.stack([hidden[last] for last in lasts])
            positions = [batch.lengths[index] + chunk.num_tokens - 1 for index, chunk in enumerate(batch.chunks)]
            self._first[batch.seats] = torch.stack(positions)

    def on_restore(self, seat: int, pages: torch.Tensor, num_tokens: int) -> None:
        """Go on from the hidden row at the end of the cached prefix; a row of zeros stands before the first token."""
        if num_tokens:
            assert num_tokens % PAGE_TOKENS == 0, f"a hit of {num_tokens} tokens ends inside a page"
            last = pages[num_tokens // PAGE_TOKENS - 1 : num_tokens // PAGE_TOKENS]
            self._hidden[seat, :1] = self.pages.page_ends.index_select(0, last)
        else:
            self._hidden[seat, 0].zero_()
        self._first[seat].fill_(num_tokens - 1)  # assigning a number would copy it from the host and wait

    def on_release(self, seat: int) -> None:
        """Nothing to undo: what the next request in this seat reads was written for it."""

    def propose(self, inputs: DraftInputs) -> Proposal:
        """Draft k tokens one after the other: the likeliest, or for sampled requests one drawn among the likeliest few."""
        hidden, token, drafts = self._carried(inputs.seats, inputs.lengths), inputs.pending, []
        for index in range(self.num_drafts):
            place = inputs.lengths + index
            seen = Seen(inputs.page_table, place, inputs.seats > 0)
            cells = _cells(inputs.page_table, place)
            hidden = self.head.forward(token, hidden, cells, (place - 1).clamp(min=0), self.pages, seen)
            drafts.append(draw(self.head.target.logits(hidden), inputs.temperature, inputs.seeds, place + 1))
            token = drafts[-1][0]
        tokens, candidates, q = (torch.stack(parts, dim=1) for parts in zip(*drafts, strict=True))
        return Proposal(tokens, candidates, q)

    @property
    def pages(self) -> MtpPlanes:
        """The head's planes."""
        assert self._planes is not None, "bind comes first"
        return self._planes

    def memory_bytes(self) -> int:
        """Bytes of the head's weights."""
        return self.head.parameters.memory_bytes()

    def _carried(self, seats: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The hidden row [B, H] before the token at position `lengths` [B]."""
        index = (lengths - 1 - self._first[seats]).clamp(0, self.num_drafts)
        return self._hidden[seats, index]

    def _previous(self, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden row before each row of the batch: its neighbour's, or for the first of a request the carried one."""
        previous, carried = hidden.roll(1, dims=0), self._carried(batch.seats, batch.lengths)
        if isinstance(batch, VerifyBatch):
            previous.view(-1, batch.width, hidden.shape[-1])[:, 0] = carried
            return previous
        for index, chunk in enumerate(batch.chunks):
            previous[chunk.offset] = carried[index]
        return previous


def _cells(page_table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Cells int64 [B] of positions [B]; what stands past a request's pages goes to the dummy page."""
    index = positions // PAGE_TOKENS
    pages = page_table.gather(1, index.clamp(max=page_table.shape[1] - 1)[:, None])[:, 0]
    return torch.where(index < page_table.shape[1], pages, 0) * PAGE_TOKENS + positions % PAGE_TOKENS
