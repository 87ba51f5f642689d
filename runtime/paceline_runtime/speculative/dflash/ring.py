"""Keys and values of each request's last context rows, in rings addressed by position.

The proposer calls it. A ring never needs a reset: which positions it holds follows from the request's length, and
`window_attention` looks at no other entry. A ring has 64 entries more than the window: so a verify's rejected rows, which stand
past the length, overwrite no context that is still in the window.
"""

from __future__ import annotations

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_kernels.context_rows import context_keys_values
from paceline_runtime.speculative.dflash.draft import Draft


class ContextRings:
    """Rings of all seats; seat 0 is the dummy.

    keys, values: [L, num_seats, R, Hkv, D] with R = window + 64
    """

    def __init__(self, draft: Draft, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys, self.values = keys, values
        self.size, self.reach = keys.shape[2], draft.config.sliding_window - 1
        self._projection = draft.context_projection()

    def write(self, seats: torch.Tensor, positions: torch.Tensor, context: torch.Tensor) -> None:
        """Keep context rows [N, H] of positions int64 [N] in the rings of seats int64 [N]; no place twice but in seat 0's."""
        keys, values = context_keys_values(context, positions, self._projection)
        places = positions % self.size
        self.keys[:, seats, places] = keys.transpose(0, 1)
        self.values[:, seats, places] = values.transpose(0, 1)

    def restore(self, seat: int, plane: torch.Tensor, pages: torch.Tensor, num_tokens: int) -> None:
        """Rebuild a ring from the context rows that its window can reach: plane [num_pages, PAGE_TOKENS, H], pages int64 [P].

        At most window - 1 rows for one request at a time, which is also what a prefill chunk writes at most.
        """
        positions = torch.arange(max(0, num_tokens - self.reach), num_tokens, device=pages.device)
        if len(positions):
            context = plane[pages[positions // PAGE_TOKENS], positions % PAGE_TOKENS]
            self.write(torch.full_like(positions, seat), positions, context)
