"""The causal convolution with state and journal, against the convolution of the whole sequence."""

from __future__ import annotations

import pytest
import torch
from gdn_recurrence import conv_by_rows, relative_rms, replaying

from paceline_kernels.causal_conv import prefill_conv, replay_conv, verify_conv


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 7])
def test_every_accept_length_equals_the_whole_sequence(num_steps: int, size: int) -> None:
    """Blocks of 1 + k rows with 1 .. 1 + k of them kept, after a prefill shorter than the kernel."""
    width, channels = 1 + num_steps, 5
    weight = torch.randn(channels, size, dtype=torch.float64)
    states = torch.zeros(4, size - 1, channels, dtype=torch.float64)
    journal = torch.full((4, width + 1, channels), torch.nan, dtype=torch.float64)
    slots, kept, texts = ints(3, 1), ints(0, 0), []
    for b, slot in enumerate(slots):
        texts.append(torch.randn(b + 1, channels, dtype=torch.float64))
        out, (states[slot],) = prefill_conv(states[slot], texts[b], weight, (b + 1,))
        assert relative_rms(out, conv_by_rows(texts[b], weight)) < 1e-12
    for step in range(2 * width + 1):
        block = torch.randn(2, width, channels, dtype=torch.float64)
        out = verify_conv(states, journal, replaying(slots, kept), block, weight)
        kept = (torch.arange(2) * 2 + step) % width + 1
        for b in range(2):
            whole = torch.cat((texts[b], block[b]))
            assert relative_rms(out[b], conv_by_rows(whole, weight)[-width:]) < 1e-12
            texts[b] = whole[: len(texts[b]) + int(kept[b])]


def test_states_are_the_last_inputs_at_the_kept_row_and_at_the_snapshot() -> None:
    """Columns of the state, of the journal or of both; a snapshot of 0 rows is not written."""
    size, channels = 4, 3
    states, journal = torch.randn(6, size - 1, channels), torch.randn(6, 8, channels)
    before = states.clone()

    replay_conv(states, journal, replaying([1, 2], [7, 2], [1, 0], [4, 5]))

    inputs = torch.cat((before, journal), dim=1)
    assert torch.equal(states[1], inputs[1, 7:10])
    assert torch.equal(states[2], inputs[2, 2:5])
    assert torch.equal(states[4], inputs[1, 1:4])
    assert torch.equal(states[5], before[5])
    assert torch.equal(states[3], before[3])


def test_prefill_in_tiles_is_the_whole_convolution() -> None:
    """Rows on both sides of a border between tiles."""
    x, weight = torch.randn(2050, 3, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)

    out, (end,) = prefill_conv(torch.zeros(3, 3, dtype=torch.float64), x, weight, (2050,))

    assert relative_rms(out, conv_by_rows(x, weight)) < 1e-12
    assert torch.equal(end, x[-3:])


def test_prefill_gives_the_state_at_every_end_asked_for() -> None:
    """Also right at the start and within the kernel's reach of it."""
    state, x, weight = torch.randn(3, 5), torch.randn(70, 5), torch.randn(5, 4)

    out, ends = prefill_conv(state, x, weight, (0, 1, 64, 70))

    assert out.shape == x.shape
    whole = torch.cat((state, x))
    for end, found in zip((0, 1, 64, 70), ends, strict=True):
        assert torch.equal(found, whole[end : end + 3])


def test_sums_are_in_float32_below_bfloat16_rows() -> None:
    """The output is the exact one rounded once."""
    x, weight = torch.randn(20, 16).bfloat16(), torch.randn(16, 4).bfloat16()

    out, _ = prefill_conv(torch.zeros(3, 16, dtype=torch.bfloat16), x, weight, ())

    exact = conv_by_rows(x.double(), weight.double())
    torch.testing.assert_close(out, exact.bfloat16(), rtol=2**-8, atol=0)
