"""Forbids, on a CPU, what would make a launch wait for a GPU: reading a tensor, or assigning a number into one."""

from __future__ import annotations

import pytest
import torch

from paceline_runtime.engine.core import Engine
from paceline_runtime.step import StepPlan

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero")


def forbid_reads(patch: pytest.MonkeyPatch) -> None:
    """Until the patch is undone, each of these raises AssertionError."""
    assign = torch.Tensor.__setitem__

    def refuse_numbers(self: torch.Tensor, index: object, value: object) -> None:
        # On a GPU the number is copied from the host, and torch waits for the copy (seen on torch 2.11).
        assert isinstance(value, torch.Tensor), f"launch assigns the number {value}: use fill_"
        assign(self, index, value)

    for name in READS:
        patch.setattr(torch.Tensor, name, _raiser(name))
    patch.setattr(torch.Tensor, "__setitem__", refuse_numbers)


def watch_launches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """Forbid reads within every launch from now on; the plans launched so."""
    launch = engine.executor.launch
    seen: list[StepPlan] = []

    def guarded(plan: StepPlan):
        with monkeypatch.context() as patch:
            forbid_reads(patch)
            seen.append(plan)
            return launch(plan)

    engine.executor.launch = guarded
    return seen


def _raiser(name: str):
    def refuse(self: torch.Tensor, *args: object, **kwargs: object) -> None:
        raise AssertionError(f"launch reads the device: Tensor.{name}")

    return refuse
