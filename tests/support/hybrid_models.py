"""Batches with recurrent states for hybrid targets, without an engine: requests, their slots and what they replay next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tiny_models import TinyCache, build_reference, logits_of, tiny_prefill, tiny_verify

from paceline_compat.memory.buffers import target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.batch import ForwardBatch, StateBatch
from paceline_runtime.cache.allocation import allocate, dtype_name
from paceline_runtime.cache.gated_delta_states import GatedDeltaStates
from paceline_runtime.models.base import TargetModel

HYBRIDS = ("qwen3_5", "qwen3_5_moe")
IDS = [(7 * i * i + 3 * i + 2) % 300 + 2 for i in range(160)]


def make_hybrid(name: str, **overrides) -> torch.nn.Module:
    """`build_reference` at a scale at which GDN's norms do not magnify transformers' float32 rounding past 1e-5."""
    return build_reference(name, **{"scale": 0.1, **overrides})


def lasting(model: torch.nn.Module) -> torch.nn.Module:
    """The model with states that fade over some ten to a thousand tokens.

    By default a state forgets within a token or two, and a test would not see that it was lost.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(torch.empty_like(parameter).uniform_(1e-3, 0.1).log())
    return model


def save_hybrid(name: str, folder: Path, *, dtype: torch.dtype = torch.float64, **overrides) -> Path:
    """Write a tiny hybrid with a lasting memory to `folder / name`."""
    lasting(make_hybrid(name, dtype=dtype, **overrides)).save_pretrained(folder / name)
    return folder / name


@dataclass
class HybridRunner:
    """A model with pages and states for a few requests, numbered from 0; request r has the state slot and the row r + 1.

    Slots after those of the requests are free for snapshots. `replay` says how many rows of the last verify were kept.
    """

    model: TargetModel
    num_requests: int = 1
    journal_rows: int = 8
    num_snapshots: int = 4
    max_tokens: int = 256

    def __post_init__(self):
        self.cache = TinyCache(self.model.facts, self.model.dtype, self.num_requests, self.max_tokens)
        rows = self.num_requests + 1
        buffers = target_buffers(self.model.facts, dtype_name(self.model.dtype), self.journal_rows - 1)
        layout = MemoryLayout(buffers, num_seats=rows, num_slots=rows + self.num_snapshots)
        self.states: GatedDeltaStates = self.model.make_states(allocate(layout, self.model.device))
        self.cache.with_states(self.states)
        self.replay = [0] * self.num_requests

    def snapshot_slot(self, index: int) -> int:
        return self.num_requests + 1 + index

    def prefill(self, *chunks: tuple[int, int, list[int]], snapshots: dict[int, tuple] | None = None, sink=None):
        """Logits [N, V] of chunks (request, start, ids); `snapshots` by index of the chunk."""
        batch = tiny_prefill(self.cache, list(chunks))
        marked = tuple(replace(c, snapshots=(snapshots or {}).get(i, ())) for i, c in enumerate(batch.chunks))
        zeros = [0] * len(chunks)
        return self._run(replace(batch, chunks=marked), [chunk[0] for chunk in chunks], zeros, zeros, zeros, sink)

    def verify(self, *rows: tuple[int, int, list[int]], snapshots: dict[int, tuple[int, int]] | None = None, sink=None):
        """Logits [B * W, V] of rows (request, length, ids); `snapshots`: request -> (rows of the replay, slot)."""
        requests = [row[0] for row in rows]
        due = [(snapshots or {}).get(request, (0, 0)) for request in requests]
        replayed = [self.replay[request] for request in requests]
        batch = tiny_verify(self.cache, list(rows))
        return self._run(batch, requests, replayed, [rows for rows, _ in due], [slot for _, slot in due], sink)

    def verify_padded(self, row: tuple[int, int, list[int]], padding: tuple[int, int, list[int]]):
        """Logits of one request's rows and of a padded one: dummy slot and row, nothing to replay, no row active."""
        batch = tiny_verify(self.cache, [row, padding])
        width, real = len(row[2]), torch.tensor([row[0] + 1, 0])
        active = torch.arange(2 * width) < width
        state = StateBatch(real, torch.tensor([self.replay[row[0]], 0]), torch.zeros(2).long(), torch.zeros(2).long(), real)
        cells = torch.where(active, batch.cells, torch.arange(2 * width))
        return logits_of(self.model, replace(batch, seats=real, active=active, cells=cells, state=state), self.cache)

    def keep(self, request: int, num_rows: int) -> None:
        """Rows of the request's last verify that were accepted."""
        self.replay[request] = num_rows

    def flush(self, request: int, snapshot_rows: int, slot: int) -> None:
        """The commit-only launch of a request that ends."""
        columns = ([request + 1], [self.replay[request]], [snapshot_rows], [slot], [request + 1])
        self.states.flush(StateBatch(*map(torch.tensor, columns)))

    def _run(self, batch: ForwardBatch, requests, replay_rows, snapshot_rows, snapshot_slots, sink):
        slots = [request + 1 for request in requests]
        state = StateBatch(*map(torch.tensor, (slots, replay_rows, snapshot_rows, snapshot_slots, slots)))
        self.batch = replace(batch, state=state)
        if sink is None:
            return logits_of(self.model, self.batch, self.cache)
        return self.model.forward(self.batch, self.cache.memory, sink)

    def state_of(self, slot: int) -> list[torch.Tensor]:
        """Copies of all layers' recurrent and convolution states of a slot."""
        return [part[slot].clone() for layer in self.states.layers for part in (layer.recurrent, layer.conv)]
