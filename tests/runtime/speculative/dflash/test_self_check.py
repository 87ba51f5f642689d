"""The start-up self-check passes a sound draft in every dtype and raises for each way its serving path can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from dflash_pairs import TableTarget, draft_content, oracle_draft, our_draft

from paceline_kernels.backend import Backend
from paceline_runtime.speculative.dflash import draft as draft_module
from paceline_runtime.speculative.dflash import draft_layer
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.dflash.ring import ContextRings
from paceline_runtime.speculative.dflash.self_check import SelfCheckError, check_draft
from paceline_runtime.speculative.dflash.taps import TapSum


def proposer(dtype: torch.dtype, backend: Backend = Backend.AUTO) -> DFlashProposer:
    """A tiny draft; its window is shorter than the known prompt."""
    content = draft_content(sliding_window=70)
    draft = our_draft(oracle_draft(content), content, dtype)
    return DFlashProposer(draft.computed_by(backend), TableTarget(48, 96, dtype), 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sound_draft_passes(dtype: torch.dtype) -> None:
    """The report says how near the two paths are."""
    found = check_draft(proposer(dtype), TableTarget(48, 96, dtype))

    assert found.num_equal_drafts == found.num_drafts == 7
    assert "7 of 7 drafts equal" in str(found)


def test_triton_kernels_pass() -> None:
    """The GPU's path, under the interpreter where there is no GPU."""
    found = check_draft(proposer(torch.float32, Backend.KERNEL), TableTarget(48, 96, torch.float32))

    assert found.hidden_deviation > 0


BROKEN_KERNELS: dict[str, tuple[str, Callable[..., Any]]] = {
    "convolution-ignores-the-past": (
        "grouped_conv",
        lambda right, x, delta, base: right(x, delta[:, :, :1], base[:1]),
    ),
    "window-too-long": ("window_attention", lambda right, window, **rest: right(window=window + 9, **rest)),
    "attention-is-nan": ("window_attention", lambda right, q, **rest: q * torch.nan),
    "walk-ignores-temperature": (
        "select_path",
        lambda right, draws, **rest: right(draws=replace(draws, temperature=0.5 * draws.temperature), **rest),
    ),
}


@pytest.mark.parametrize(("name", "wrong"), BROKEN_KERNELS.values(), ids=BROKEN_KERNELS)
def test_wrong_kernel_is_found(name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that computes something else keeps the process from getting ready."""
    room = draft_layer if hasattr(draft_layer, name) else draft_module
    right = getattr(room, name)

    def face(*args: Any, backend: Backend, **named: Any) -> Any:
        return right(*args, **named) if backend is Backend.REFERENCE else wrong(right, *args, **named)

    monkeypatch.setattr(room, name, face)

    with pytest.raises(SelfCheckError, match="self-check"):
        check_draft(proposer(torch.float32), TableTarget(48, 96, torch.float32))


def test_swapped_taps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two taps projected by each other's matrix."""
    output = TapSum.layer_output
    swapped = {1: 3, 3: 1, 6: 6}
    monkeypatch.setattr(TapSum, "layer_output", lambda self, layer, hidden: output(self, swapped[layer], hidden))

    with pytest.raises(SelfCheckError):
        check_draft(proposer(torch.float32), TableTarget(48, 96, torch.float32))


def test_ring_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Context rows written one slot too far."""
    write = ContextRings.write
    monkeypatch.setattr(ContextRings, "write", lambda self, rows, positions, context: write(self, rows, positions + 1, context))

    with pytest.raises(SelfCheckError):
        check_draft(proposer(torch.float32), TableTarget(48, 96, torch.float32))
