"""How many pages and state slots fit: the plan made once, before anything large is allocated.

Called by `build`, which allocates the plan's layout. Buffers and the arithmetic of single parts are `paceline_compat.memory`'s;
here the target and the proposer are in memory and are asked what their weights take.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_compat.memory import buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_compat.memory.parts import (
    PAGE_TOKENS,
    gathered_bytes,
    graph_pool_bytes,
    logits_bytes,
    num_state_slots,
    pages_for,
    prefill_bytes,
)
from paceline_compat.memory.planner import no_state_slots
from paceline_runtime.cache.allocation import dtype_name
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.host_memory import host_free_bytes
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer


class SizeError(ValueError):
    """Sizes that cannot be. `field` is the one of `EngineConfig` that is at fault first."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class MemoryPlan:
    """What to allocate for contexts of `max_model_len`, and what each part takes in bytes."""

    layout: MemoryLayout
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
        head = f"context of {self.max_model_len} tokens, {self.layout.num_pages - 1} pages of {PAGE_TOKENS} tokens"
        return "\n".join([head, *lines])


def plan_memory(config: EngineConfig, target: TargetModel, proposer: Proposer | None, *, freed_bytes: int = 0) -> MemoryPlan:
    """Size the cache: an explicit `num_pages` as given, else what the budget holds after everything else.

    Without a limit the cache would take all memory: it never gets more pages than `max_running_req` full contexts and as many
    again of cached prefixes can use. Without `max_model_len` the context is the model's, or what fits. SizeError when not
    even one full context fits, with what is short and what to change. `freed_bytes` are of buffers that will be gone by then.
    """
    if config.num_state_slots is not None and not target.facts.num_linear_layers:
        raise SizeError("num_state_slots", no_state_slots(target.facts.family))
    longest = config.max_model_len or target.facts.max_positions
    layout = _layout(config, target, proposer, longest)
    page_bytes = layout.bytes_per("page")
    budget = budget_bytes(config, target, proposer, freed_bytes=freed_bytes)
    left = budget - sum(size for _, size in _parts(config, target, proposer, longest, layout))
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
    layout = _layout(config, target, proposer, longest, num_pages)
    return MemoryPlan(layout, longest, _parts(config, target, proposer, longest, layout))


def _layout(
    config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int, num_pages: int = 0
) -> MemoryLayout:
    return MemoryLayout(
        buffers.engine_buffers(
            target.facts,
            proposer.buffers if proposer else (),
            dtype_name(target.dtype),
            num_drafts=_num_drafts(proposer),
            max_model_len=max_model_len,
        ),
        num_pages=num_pages,
        num_seats=config.max_running_req + 1,
        num_slots=num_state_slots(target.facts, config.max_running_req, config.num_state_slots),
    )


def _parts(
    config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int, layout: MemoryLayout
) -> tuple[tuple[str, int], ...]:
    own_bytes = layout.num_bytes(buffers.RINGS, buffers.MTP_ROWS)
    return (
        ("target weights", target.memory_bytes()),
        ("draft weights and rings", (proposer.memory_bytes() if proposer else 0) + own_bytes),
        ("recurrent states", layout.num_bytes(buffers.STATES)),
        ("journals", layout.num_bytes(buffers.JOURNAL)),
        ("seats", layout.num_bytes(buffers.SEATS)),
        ("step temporaries", _temporary_bytes(config, target, proposer, max_model_len)),
        *((("CUDA graphs", graph_bytes(config, target, proposer)),) if captures(config, target.device) else ()),
        ("K/V and context pages", layout.num_bytes(buffers.PAGES)),
    )


def _num_drafts(proposer: Proposer | None) -> int:
    return proposer.num_drafts if proposer else 0


def _temporary_bytes(config: EngineConfig, target: TargetModel, proposer: Proposer | None, max_model_len: int) -> int:
    """Logits of a full verify and what drawing from them takes, activations of a full chunk, one layer's K/V in one piece."""
    facts, dtype_bytes, tapped = target.facts, target.dtype.itemsize, proposer.kept_row_bytes if proposer else 0
    logits = logits_bytes(config.max_running_req * (1 + _num_drafts(proposer)), facts.vocab_size, dtype_bytes)
    activations = prefill_bytes(facts, config.max_prefill_tokens, tapped, dtype_bytes)
    return logits + activations + gathered_bytes(facts, max_model_len, dtype_bytes)


def captures(config: EngineConfig, device: torch.device) -> bool:
    """Whether decode steps are captured as CUDA graphs."""
    return config.cuda_graphs and device.type == "cuda"


def graph_bytes(config: EngineConfig, target: TargetModel, proposer: Proposer | None) -> int:
    """The graphs and their pool, beside what a prefill takes."""
    return graph_pool_bytes(target.facts, config.max_running_req * (1 + _num_drafts(proposer)), target.dtype.itemsize)


def budget_bytes(
    config: EngineConfig,
    target: TargetModel | None = None,
    proposer: Proposer | None = None,
    *,
    device: torch.device | None = None,
    freed_bytes: int = 0,
) -> int:
    """What everything together may take: `memory_bytes`, or `memory_ratio` of what is there; never more than is there.

    A given number of pages stands for the ratio: then it is all that is there.
    """
    there = available_bytes(config, target, proposer, device=device, freed_bytes=freed_bytes)
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
    freed_bytes: int = 0,
) -> int:
    """What is free now, what is loaded already, and what buffers give back that will be gone."""
    device = target.device if target is not None else device
    assert device is not None, "a budget is of a device"
    free = _gpu_free_bytes(device) if device.type == "cuda" else host_free_bytes()
    loaded = sum(part.memory_bytes() for part in (target, proposer) if part is not None)
    return free + loaded + freed_bytes


def _gpu_free_bytes(device: torch.device) -> int:
    """What the driver has left, and what torch keeps of freed tensors for the next ones."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
