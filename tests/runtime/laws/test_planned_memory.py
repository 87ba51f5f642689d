"""What the planner says from headers is what a running engine holds, byte for byte: all families, all proposers."""

import gc
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hybrid_models import HYBRIDS
from mtp_models import save_with_mtp
from tiny_models import save_tiny

from paceline_compat import Plan, PlanOptions, plan, read_draft, read_target
from paceline_compat.facts.families import SERVED_FAMILIES
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.cache import allocation
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine import build
from paceline_runtime.engine.build import build_engine
from paceline_runtime.engine.memory import plan_memory
from paceline_runtime.messages import Rebuild
from paceline_runtime.speculative.dflash.init import DraftSizes, init_draft

ALGORITHMS = [(family, name) for family in SERVED_FAMILIES for name in ("off", "ngram", "dflash")]
ALGORITHMS += [(family, "mtp") for family in HYBRIDS]
SIZES = {"max_model_len": 300, "max_prefill_tokens": 64}
TEMPORARY = {"logits", "prefill temporaries", "gathered K/V"}
"""Taken while a step runs, and given back."""
WEIGHTS = {"target weights", "MTP head", "draft weights", "draft codebooks"}


@dataclass
class Allocations:
    """Layouts that were allocated in place of `build.allocate`, and the sizes of their tensors."""

    layouts: list[MemoryLayout] = field(default_factory=list)
    sizes: list[Counter[int]] = field(default_factory=list)

    def __call__(self, layout: MemoryLayout, device: torch.device) -> dict[str, torch.Tensor]:
        tensors = allocation.allocate(layout, device)
        self.layouts.append(layout)
        self.sizes.append(Counter(tensor.untyped_storage().nbytes() for tensor in tensors.values()))
        return tensors


@pytest.fixture
def frozen():
    """Nothing that is there already is looked at, or counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def storages() -> dict[int, int]:
    """All memory that tensors made since then hold: bytes by address."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu"]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints by family: the target, and whether it has a head of its own; written when first asked for."""

    @cache
    def save(family: str, has_head: bool) -> Path:
        folder = tmp_path_factory.mktemp(family)
        return save_with_mtp(family, folder).path if has_head else save_tiny(family, folder)

    return save


def unplanned_bytes(engine) -> int:
    """A few hundred bytes that no plan needs to know.

    They are frequencies, who decodes, the parameters of nobody, and the norms of a draft's keys side by side.
    """
    target, proposer, seats = engine.executor.target, engine.executor.proposer, engine.executor.seats
    kept = [target.rotary.inverse_frequencies, *(table for table, _ in engine.executor._inputs._tables.values())]
    kept += [part for part in vars(seats.params._neutral).values() if torch.is_tensor(part)]
    if proposer is not None and proposer.name == "dflash":
        kept += [proposer.draft.rotary.inverse_frequencies, proposer.rings._projection.key_norms]
    return sum({part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in kept}.values())


def said(path, draft_path, algorithm: str, dtype: str, num_pages: int) -> Plan:
    """The plan from headers, without weights or torch."""
    options = PlanOptions(algorithm, dtype=dtype, max_running=3, num_pages=num_pages, **SIZES)
    return plan(1 << 30, read_target(str(path)), read_draft(str(draft_path)) if draft_path else None, options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("family", "algorithm"), ALGORITHMS)
@pytest.mark.usefixtures("frozen")
def test_the_process_holds_what_was_planned(saved, tmp_path, monkeypatch, family, algorithm, dtype):
    """After the start, warmed up, and again after the cache was rebuilt; and each buffer has the size it was planned with."""
    path, draft_path = saved(family, algorithm == "mtp"), tmp_path / "draft" if algorithm == "dflash" else None
    if draft_path is not None:
        init_draft(str(path), draft_path, DraftSizes(sliding_window=64), torch.float32, seed=0)
    allocations = Allocations()
    monkeypatch.setattr(build, "allocate", allocations)
    config = EngineConfig(
        model_path=str(path),
        dtype=dtype,
        device="cpu",
        speculative_algorithm=algorithm,
        speculative_draft_model_path=draft_path and str(draft_path),
        max_running_req=3,
        num_pages=9,
        **SIZES,
    )
    assert {} == storages()
    engine = build_engine(config)

    for num_pages in (9, 14):
        if num_pages != engine.stats().num_pages:
            assert engine.rebuild(Rebuild(num_pages=num_pages)).error is None
        held = storages()
        from_headers = said(path, draft_path, algorithm, dtype, num_pages)
        rows = {row.name: row.num_bytes for row in from_headers.rows}
        planned_bytes = sum(size for name, size in rows.items() if name not in TEMPORARY)
        layout, sizes = allocations.layouts[-1], allocations.sizes[-1]

        assert planned_bytes + unplanned_bytes(engine) == sum(held.values())
        assert unplanned_bytes(engine) < 512
        assert layout.num_bytes() == sum(size * count for size, count in sizes.items())
        assert sizes <= Counter(held.values())
        loaded = plan_memory(replace(config, num_pages=num_pages), engine.executor.target, engine.executor.proposer)
        assert (loaded.layout, loaded.total_bytes) == (layout, from_headers.total_bytes)
        assert layout.num_bytes() == planned_bytes - sum(size for name, size in rows.items() if name in WEIGHTS)
    assert 2 == len(allocations.layouts)
