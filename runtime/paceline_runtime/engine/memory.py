"""How many pages and state slots fit: the plan made once, before anything large is allocated.

Called by `build`. The arithmetic of single parts is `paceline_compat.memory`'s for a checkpoint that is not loaded yet; here
the target and the proposer are in memory and are asked what they take.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from paceline_runtime.batch import PAGE_SIZE
from paceline_runtime.config import EngineConfig
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes to allocate, dummies included, and what each part takes in bytes."""

    num_pages: int
    num_state_slots: int
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Everything planned."""
        return sum(size for _, size in self.parts)

    def table(self) -> str:
        """The plan for people, one part a line."""
        lines = [f"{name:<28} {size / 2**20:>12,.1f} MiB" for name, size in (*self.parts, ("together", self.total_bytes))]
        return "\n".join([f"{self.num_pages - 1} pages of {PAGE_SIZE} tokens", *lines])


def plan_memory(config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int) -> MemoryPlan:
    """Size the cache: an explicit `num_pages` as given, else what the budget holds after everything else.

    Without a limit the cache would take all memory: it never gets more pages than `max_running_req` full contexts and as many
    again of cached prefixes can use. ValueError when not even one full context fits, with what is short and what to change.
    """
    num_steps = proposer.num_steps if proposer else 0
    slots = 1 + config.max_running_req * 5 if target.shape.state_bytes_per_slot else 0
    page_bytes = bytes_per_page(target, proposer)
    fixed = (
        ("target weights", target.memory_bytes()),
        ("draft weights and rings", proposer.memory_bytes() if proposer else 0),
        ("recurrent states", slots * target.shape.state_bytes_per_slot),
        ("token history", (config.max_running_req + 1) * (max_model_len + 2 + num_steps) * 8),
        ("step temporaries", _temporary_bytes(config, target, num_steps)),
    )
    least = 1 + pages_for(max_model_len)
    most = 1 + 2 * config.max_running_req * pages_for(max_model_len)
    num_pages = (
        config.num_pages + 1 if config.num_pages is not None else min(most, _affordable(config, target, fixed, page_bytes))
    )
    if num_pages < least:
        missing = (least - num_pages) * page_bytes
        raise ValueError(
            f"one context of {max_model_len} tokens needs {least - 1} pages, but {max(num_pages - 1, 0)} fit: "
            f"{missing / 2**20:,.0f} MiB are short. Lower --max-model-len or --max-running-requests, or raise "
            "--memory-ratio, --memory-bytes or --num-pages"
        )
    return MemoryPlan(num_pages, slots, (*fixed, ("K/V and context pages", num_pages * page_bytes)))


def bytes_per_page(target: TargetModel, proposer: Proposer | None) -> int:
    """K/V of all attention layers and the proposer's planes, for one page."""
    shape = target.shape
    per_token = 2 * len(shape.attention_layers) * shape.num_kv_heads * shape.head_dim * target.dtype.itemsize
    for plane in proposer.planes if proposer else ():
        per_token += torch.Size(plane.shape).numel() * plane.dtype.itemsize
    return per_token * PAGE_SIZE


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens`."""
    return -(-num_tokens // PAGE_SIZE)


def _temporary_bytes(config: EngineConfig, target: TargetModel, num_steps: int) -> int:
    """Logits of a full verify (adjusted and sorted copies too) and the activations of a full prefill chunk."""
    shape = target.shape
    rows = config.max_running_req * (1 + num_steps)
    activation_bytes = config.max_prefill_tokens * shape.hidden_size * target.dtype.itemsize * 16
    return rows * shape.vocab_size * 4 * 4 + activation_bytes


def _affordable(config: EngineConfig, target: TargetModel, fixed: tuple[tuple[str, int], ...], page_bytes: int) -> int:
    taken = sum(size for _, size in fixed)
    if config.memory_bytes is not None:
        return max(config.memory_bytes - taken, 0) // page_bytes
    if target.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(target.device)
        already = target.memory_bytes()  # loaded: no longer part of what is free
        return max(int((free + already) * config.memory_ratio) - taken, 0) // page_bytes
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(int((free + target.memory_bytes()) * config.memory_ratio) - taken, 0) // page_bytes
