"""Everything a running request needs on the device, by seat: what the next step reads without the host having seen it.

The executor owns it. Seat 0 is the dummy of inert rows: its length stays 0, its pages are dummies, and its history means
nothing. `lengths[seat]` counts the tokens in the cache and is the position of the pending token;
`history[seat, : lengths + 1]` are the committed ids, the pending one last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.commit_runs import commit_runs
from paceline_kernels.seat_tables import SeatTables
from paceline_runtime.device.seat_params import SeatParams
from paceline_runtime.device.transfer import upload
from paceline_runtime.step import PageChange, Start


class SeatBuffers:
    """Allocated buffers of all seats, dummy included, for contexts of `max_model_len` tokens.

    history int64 [S, max_model_len and some]; page_table int64 [S, P], dummy pages past a request's own;
    lengths, replay, state_slots int64 [S]. `replay` counts the rows of the last verify that were committed: what a recurrent
    state has yet to apply.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], max_model_len: int) -> None:
        self.history, self.page_table = tensors["history"], tensors["page_table"]
        self.lengths, self.replay, self.state_slots = (tensors[name] for name in ("lengths", "replay", "state_slots"))
        self.params = SeatParams(tensors)
        self.max_model_len = max_model_len
        self.device = self.history.device

    @property
    def tables(self) -> SeatTables:
        """The buffers as the kernels take them."""
        rows = self.lengths, self.replay, self.state_slots
        return SeatTables(self.history, self.page_table, *rows, self.max_model_len, PAGE_TOKENS)

    def start(self, start: Start) -> torch.Tensor:
        """A request takes a seat with its committed tokens, some of them cached; returns the pages of those, int64 [P]."""
        seat, pages = start.seat, upload(start.pages, torch.int64, self.device)
        self.history[seat, : len(start.tokens)] = upload(start.tokens, torch.int64, self.device)
        self.page_table[seat].zero_()
        self.page_table[seat, : len(start.pages)] = pages
        self.lengths[seat].fill_(start.num_cached)  # assigning a number would copy it from the host, and wait
        self.replay[seat].fill_(0)
        self.state_slots[seat].fill_(start.state_slot)
        self.params.start(start)
        return pages

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """Pages that seats were given, or got in the place of others."""
        places = [(change.seat, change.first + i, page) for change in changes for i, page in enumerate(change.pages)]
        if places:
            seats, columns, pages = upload(places, torch.int64, self.device).unbind(1)
            self.page_table[seats, columns] = pages

    def pages_of(self, seats: torch.Tensor, num_pages: int) -> torch.Tensor:
        """The first pages of each seat int64 [B]: [B, num_pages]."""
        return self.page_table[seats, :num_pages]

    def append(self, seats: torch.Tensor, run: torch.Tensor, num_tokens: torch.Tensor) -> torch.Tensor:
        """Commit runs [B, W], the first `num_tokens` [B] of each but of the dummy's; how many were committed, [B].

        The last committed becomes the pending token.
        """
        return commit_runs(seats, run, num_tokens, self.tables)

    def append_first(self, seats: torch.Tensor, tokens: torch.Tensor) -> None:
        """Commit the first token after a prompt, [B]: it becomes the pending token; the cache holds the prompt already."""
        self.history[seats, self.lengths[seats]] = tokens
