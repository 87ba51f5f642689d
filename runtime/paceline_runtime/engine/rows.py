"""Per-request device buffers: what the next step's kernels read without the host having seen it.

Owned by the executor. Row 0 is the dummy. `lengths[row]` counts the tokens in the cache and is the position of the pending
token; `history[row, : lengths + 1]` are the committed ids, the pending one last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline_runtime.engine.transfer import upload


class Rows:
    """Buffers of `num_rows` request rows, dummy included, for contexts of `max_model_len` tokens.

    history int64 [num_rows, max_model_len + slack]; lengths, replay int64 [num_rows].
    `replay` counts the rows of the last verify that were committed: what a recurrent state has yet to apply.
    """

    def __init__(self, num_rows: int, max_model_len: int, slack: int, device: torch.device) -> None:
        self.history = torch.zeros((num_rows, max_model_len + slack), dtype=torch.int64, device=device)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.replay = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.max_model_len = max_model_len
        self.device = device

    def start(self, row: int, tokens: Sequence[int], num_cached: int) -> None:
        """A request takes the row with its committed tokens, `num_cached` of them in the cache."""
        self.history[row, : len(tokens)] = upload(tokens, torch.int64, self.device)
        self.lengths[row].fill_(num_cached)  # assigning a number would copy it from the host, and wait
        self.replay[row].fill_(0)

    def prefilled(self, row: int, length: int) -> None:
        """The row's prompt is in the cache up to `length`."""
        self.lengths[row].fill_(length)

    def pending(self, rows: torch.Tensor) -> torch.Tensor:
        """Pending token of each row, int64 [B]."""
        return self.history[rows, self.lengths[rows]]

    def append(self, rows: torch.Tensor, run: torch.Tensor, num_tokens: torch.Tensor) -> None:
        """Commit runs [B, W], the first `num_tokens` [B] of each; the last committed becomes the pending token."""
        columns = torch.arange(run.shape[1], device=self.device)
        kept = columns < num_tokens[:, None]
        targets = torch.where(kept, rows[:, None], 0)
        positions = (self.lengths[rows][:, None] + 1 + columns).clamp(max=self.history.shape[1] - 1)
        self.history[targets, positions] = run
        self.lengths[rows] = (self.lengths[rows] + num_tokens).clamp(max=self.max_model_len)
        self.replay[rows] = num_tokens

    def append_first(self, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Commit the first token after a prompt, [B]: it becomes the pending token; the cache holds the prompt already."""
        self.history[rows, self.lengths[rows]] = tokens

    def memory_bytes(self) -> int:
        """Bytes of the buffers."""
        return self.history.nbytes + self.lengths.nbytes + self.replay.nbytes
