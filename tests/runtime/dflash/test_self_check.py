"""The start-up self-check passes a sound draft in every dtype and raises for each way its serving path can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dflash_pairs import TableTarget, draft_content, oracle_draft, our_draft

from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.ops import REFERENCE, DraftOps
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.dflash.ring import ContextRings
from paceline_runtime.speculative.dflash.self_check import SelfCheckError, check_draft
from paceline_runtime.speculative.dflash.taps import TapSum


def proposer(dtype: torch.dtype, ops: DraftOps = REFERENCE) -> DFlashProposer:
    """A tiny draft with the given kernels; its window is shorter than the known prompt."""
    content = draft_content(sliding_window=70)
    draft = our_draft(oracle_draft(content), content, dtype)
    return DFlashProposer(Draft(draft.config, draft.weights, ops), TableTarget(48, 96, dtype), 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_sound_draft_passes(dtype: torch.dtype) -> None:
    """The report says how near the two paths are."""
    found = check_draft(proposer(dtype), TableTarget(48, 96, dtype))

    assert found.num_equal_drafts == found.num_steps == 7
    assert "7 of 7 drafts equal" in str(found)


def test_triton_kernels_pass() -> None:
    """The GPU's path, under the interpreter where there is no GPU."""
    from paceline_kernels.grouped_conv.kernel import grouped_conv_kernel
    from paceline_kernels.selector.kernel import select_path_kernel
    from paceline_kernels.window_attention.kernel import window_attention_kernel

    kernels = DraftOps(grouped_conv_kernel, window_attention_kernel, select_path_kernel)

    assert check_draft(proposer(torch.float32, kernels), TableTarget(48, 96, torch.float32)).hidden_deviation > 0


BROKEN_OPS = {
    "convolution-ignores-the-past": replace(
        REFERENCE, grouped_conv=lambda x, delta, base: REFERENCE.grouped_conv(x, delta[:, :, :1], base[:1])
    ),
    "window-too-long": replace(REFERENCE, window_attention=lambda *a: REFERENCE.window_attention(*a[:-1], a[-1] + 9)),
    "attention-is-nan": replace(REFERENCE, window_attention=lambda q, *_: q * torch.nan),
    "walk-ignores-temperature": replace(REFERENCE, select_path=lambda *a: REFERENCE.select_path(*a[:6], 0.5 * a[6], *a[7:])),
}


@pytest.mark.parametrize("ops", BROKEN_OPS.values(), ids=BROKEN_OPS)
def test_wrong_kernel_is_found(ops: DraftOps) -> None:
    """A kernel that computes something else keeps the process from getting ready."""
    with pytest.raises(SelfCheckError, match="self-check"):
        check_draft(proposer(torch.float32, ops), TableTarget(48, 96, torch.float32))


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
