"""How many pages and state slots fit: the plan made once, before anything large is allocated.

Called by `build`. For a checkpoint that is not loaded yet the arithmetic of single parts is `paceline_compat.memory`'s; here
the target and the proposer are in memory and are asked what they take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from paceline_compat.memory.parts import (
    PAGE_TOKENS,
    gathered_bytes,
    journal_row_bytes,
    kv_bytes_per_token,
    logits_bytes,
    num_state_slots,
    pages_for,
    seat_bytes,
    slot_bytes,
    widest_layer_values,
)
from paceline_compat.memory.planner import no_state_slots
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.host_memory import host_free_bytes
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.speculative.base import Proposer

_GRAPHS_BYTES = 256 << 20
"""An allowance for the graphs' nodes, some 700 a step of a 27B model, and for what they leave."""


class SizeError(ValueError):
    """Sizes that cannot be. `field` is the one of `EngineConfig` that is at fault first."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes to allocate, dummies included, and what each part takes in bytes."""

    num_pages: int
    num_state_slots: int
    max_model_len: int
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Everything planned."""
        return sum(size for _, size in self.parts)

    def table(self) -> str:
        """The plan for people, one part a line."""
        rows = (*self.parts, ("together", self.total_bytes))
        lines = [f"{name:<28} {size / 2**20:>12,.1f} MiB" for name, size in rows if size]
        head = f"context of {self.max_model_len} tokens, {self.num_pages - 1} pages of {PAGE_TOKENS} tokens"
        return "\n".join([head, *lines])


def plan_memory(
    config: EngineConfig, target: TargetModel, proposer: Proposer | None, *, freed: TargetMemory | None = None
) -> MemoryPlan:
    """Size the cache: an explicit `num_pages` as given, else what the budget holds after everything else.

    Without a limit the cache would take all memory: it never gets more pages than `max_running_req` full contexts and as many
    again of cached prefixes can use. Without `max_model_len` the context is the model's, or what fits. SizeError when not
    even one full context fits, with what is short and what to change. `freed` are caches that will be gone by then.
    """
    if config.num_state_slots is not None and not target.facts.num_linear_layers:
        raise SizeError("num_state_slots", no_state_slots(target.facts.family))
    page_bytes = bytes_per_page(target, proposer)
    longest = config.max_model_len or target.facts.max_positions
    fixed = _fixed_parts(config, target, proposer, longest)
    budget = budget_bytes(config, target, proposer, freed=freed)
    left = budget - sum(size for _, size in fixed)
    affordable = max(left, 0) // page_bytes
    wanted = 1 + 2 * config.max_running_req * pages_for(longest)
    num_pages = config.num_pages + 1 if config.num_pages is not None else min(wanted, affordable)
    if config.max_model_len is None:
        longest = min(longest, max(num_pages - 1, 1) * PAGE_TOKENS)
    least = max(1 + pages_for(longest), 2)
    if num_pages < least:
        short_mib = max(least * page_bytes - left, (least - num_pages) * page_bytes) / 2**20
        raise SizeError(
            "memory_bytes" if config.num_pages is None else "num_pages",
            f"one context of {longest} tokens needs {least - 1} pages, but {max(num_pages - 1, 0)} fit: "
            f"{short_mib:,.0f} MiB are short. Lower --max-model-len or --max-running-requests, or raise "
            "--memory-ratio, --memory-bytes or --num-pages",
        )
    if num_pages > affordable:
        short_mib = (num_pages * page_bytes - left) / 2**20
        lower = f"--num-pages, at most {affordable - 1} fit beside the rest"
        if affordable < least:  # fewer pages alone would not help
            lower = "--max-model-len, --max-running-requests" + (", --num-state-slots" if config.num_state_slots else "")
        raise SizeError(
            "num_pages",
            f"{num_pages - 1} pages do not fit: {short_mib:,.0f} MiB are short. Lower {lower}, or raise --memory-bytes",
        )
    slots = _num_state_slots(config, target)
    return MemoryPlan(num_pages, slots, longest, (*fixed, ("K/V and context pages", num_pages * page_bytes)))


def _fixed_parts(
    config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int
) -> tuple[tuple[str, int], ...]:
    num_drafts = proposer.num_drafts if proposer else 0
    slots, facts, dtype_bytes = _num_state_slots(config, target), target.facts, target.dtype.itemsize
    return (
        ("target weights", target.memory_bytes()),
        ("draft weights and rings", proposer.memory_bytes(config.max_running_req + 1) if proposer else 0),
        ("recurrent states", slots * slot_bytes(facts, dtype_bytes)),
        ("journals", (config.max_running_req + 1) * (1 + num_drafts) * journal_row_bytes(facts, dtype_bytes)),
        ("seats", seat_bytes(config.max_running_req, max_model_len, num_drafts)),
        ("step temporaries", _temporary_bytes(config, target, proposer, max_model_len)),
        *((("CUDA graphs", graph_bytes(config, target, proposer)),) if captures(config, target.device) else ()),
    )


def _num_state_slots(config: EngineConfig, target: TargetModel) -> int:
    return num_state_slots(target.facts, config.max_running_req, config.num_state_slots)


def bytes_per_page(target: TargetModel, proposer: Proposer | None) -> int:
    """K/V of all attention layers and the proposer's planes, for one page."""
    kv_bytes, planes = kv_bytes_per_token(target.facts, target.dtype.itemsize), proposer.planes if proposer else ()
    return kv_bytes * PAGE_TOKENS + sum(math.prod(plane.page_shape(PAGE_TOKENS)) * plane.dtype.itemsize for plane in planes)


def _temporary_bytes(config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int) -> int:
    """Logits of a full verify and what drawing from them takes, activations of a full chunk, one layer's K/V in one piece."""
    facts, dtype_bytes, kept = target.facts, target.dtype.itemsize, proposer.kept_row_bytes if proposer else 0
    rows = config.max_running_req * (1 + (proposer.num_drafts if proposer else 0))
    activation_bytes = config.max_prefill_tokens * (widest_layer_values(facts) * dtype_bytes + kept)
    gathered = gathered_bytes(max_model_len, facts.num_kv_heads, facts.head_dim, dtype_bytes)
    return logits_bytes(rows, facts.vocab_size, dtype_bytes) + activation_bytes + gathered


def captures(config: EngineConfig, device: torch.device) -> bool:
    """Whether decode steps are captured as CUDA graphs."""
    return config.cuda_graphs and device.type == "cuda"


def graph_bytes(config: EngineConfig, target: TargetModel, proposer: Proposer | None) -> int:
    """The pool that all graphs share: what the largest decode step takes while it runs, beside what a prefill takes, and the
    graphs themselves."""
    rows = config.max_running_req * (1 + (proposer.num_drafts if proposer else 0))
    facts, dtype_bytes = target.facts, target.dtype.itemsize
    logits = logits_bytes(rows, facts.vocab_size, dtype_bytes)
    return logits + rows * widest_layer_values(facts) * dtype_bytes + _GRAPHS_BYTES


def budget_bytes(
    config: EngineConfig,
    target: TargetModel | None = None,
    proposer: Proposer | None = None,
    *,
    device: torch.device | None = None,
    freed: TargetMemory | None = None,
) -> int:
    """What everything together may take: `memory_bytes`, or `memory_ratio` of what is there; never more than is there.

    A given number of pages stands for the ratio: then it is all that is there.
    """
    there = available_bytes(config, target, proposer, device=device, freed=freed)
    if config.memory_bytes is not None:
        return min(config.memory_bytes, there)
    return int(there * (config.memory_ratio if config.num_pages is None else 1.0))


def refuse_more_than_there_is(stated_bytes: int, there_bytes: int) -> None:
    """SizeError when a stated `memory_bytes` exceeds what is there: touching so much would end the process."""
    if stated_bytes > there_bytes:
        raise SizeError(
            "memory_bytes",
            f"--memory-bytes states {stated_bytes / 2**20:,.0f} MiB, but there are {there_bytes / 2**20:,.0f} MiB, counting "
            "what is loaded already: lower it, or leave it out",
        )


def available_bytes(
    config: EngineConfig,
    target: TargetModel | None = None,
    proposer: Proposer | None = None,
    *,
    device: torch.device | None = None,
    freed: TargetMemory | None = None,
) -> int:
    """What is free now, what is loaded already, and what the `freed` caches give back."""
    device = target.device if target is not None else device
    assert device is not None, "a budget is of a device"
    free = _gpu_free_bytes(device) if device.type == "cuda" else host_free_bytes()
    held = target.memory_bytes() if target is not None else 0
    if proposer is not None:  # its per-request state exists only once there are caches
        held += proposer.memory_bytes(0 if freed is None else config.max_running_req + 1)
    if freed is not None:
        held += freed.pages.memory_bytes() + (freed.states.memory_bytes() if freed.states else 0)
    return free + held


def _gpu_free_bytes(device: torch.device) -> int:
    """What the driver has left, and what torch keeps of freed tensors for the next ones."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
