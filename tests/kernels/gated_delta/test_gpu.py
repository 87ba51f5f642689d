"""The gated delta rule on a GPU at the released models' shapes: Triton's verify and fla's prefill against float64."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import random_rows, relative_rms, replaying

from paceline_kernels.backend import Backend
from paceline_kernels.gated_delta import DeltaRows, Journal, prefill_delta, replay_delta, verify_delta
from paceline_kernels.replay import Replay

pytestmark = pytest.mark.gpu

HEADS = {"27b": dict(key_heads=16, value_heads=48), "35b": dict(key_heads=16, value_heads=32)}
DIMS = dict(key_dim=128, value_dim=128)


def on_gpu(rows: DeltaRows) -> DeltaRows:
    """bf16 rows, float32 decays and betas, as the layer gives them; decays as gentle as trained ones."""
    q, k, v = (x.bfloat16().cuda() for x in (rows.q, rows.k, rows.v))
    return DeltaRows(q, k, v, (rows.log_decay / 40).cuda(), rows.beta.cuda())


def exact(rows: DeltaRows) -> DeltaRows:
    return DeltaRows(*(x.double() for x in vars(rows).values()))


def replay_on_gpu(*columns: list[int]) -> Replay:
    return Replay(*(x.cuda() for x in vars(replaying(*columns)).values()))


@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("batch", [1, 4, 32])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_verify(heads: dict[str, int], batch: int, width: int) -> None:
    """Three steps with part of each block kept; states stay within 1e-5 of float64, outputs within what bf16 rounds."""
    sizes = (heads["key_heads"], 128), (heads["value_heads"], 128), (heads["value_heads"],)
    states = torch.randn(2 * batch + 1, heads["value_heads"], 128, 128, device="cuda") * 0.1
    journal = Journal(*(torch.full((batch + 1, width, *size), torch.nan, device="cuda") for size in sizes))
    true_states, true_journal = states.double(), Journal(*(x.double() for x in vars(journal).values()))
    kept = [0] * batch
    for step in range(3):
        rows = on_gpu(random_rows(batch, width, dtype=torch.float32, **heads, **DIMS))
        slots, others = list(range(1, batch + 1)), list(range(batch + 1, 2 * batch + 1))
        due = replay_on_gpu(slots, kept, [(k + 1) // 2 if b % 2 else 0 for b, k in enumerate(kept)], others)
        out = verify_delta(states, journal, due, rows, backend=Backend.KERNEL)
        expected = verify_delta(true_states, true_journal, due, exact(rows), backend=Backend.REFERENCE)
        assert relative_rms(out, expected) < 4e-3
        assert relative_rms(states[1:], true_states[1:]) < 1e-5
        kept = [(b + step) % width + 1 for b in range(batch)]
    replay_delta(states, journal, replay_on_gpu(slots, kept))
    replay_delta(true_states, true_journal, replay_on_gpu(slots, kept))
    assert relative_rms(states[1:], true_states[1:]) < 1e-5


@pytest.mark.parametrize("num_rows", [1, 63, 64, 300, 2048])
def test_prefill_of_fla(num_rows: int) -> None:
    """Outputs, and the state a verify goes on from, in our layout."""
    pytest.importorskip("fla", reason="fla-core is not installed (extra gpu)")
    rows = on_gpu(random_rows(num_rows, dtype=torch.float32, **HEADS["27b"], **DIMS))
    state = torch.randn(48, 128, 128, device="cuda") * 0.1
    out, after = prefill_delta(rows, state, backend=Backend.KERNEL)
    expected, expected_state = prefill_delta(exact(rows), state.double(), backend=Backend.REFERENCE)
    assert relative_rms(out, expected) < 1e-2
    assert relative_rms(after, expected_state) < 1e-2
    assert after.dtype == torch.float32
