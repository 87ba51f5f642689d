"""A prefill that computes nothing: contexts of any length at once, for steps that are only timed.

`drive` hands it to the executor in the place of the real one. A decode step reads as much of a context whatever it holds, and
random weights make no sense of any: K/V and states stay what the memory holds, zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline_runtime.device.parts import Parts
from paceline_runtime.device.results import Outcome
from paceline_runtime.device.transfer import upload
from paceline_runtime.step import PrefillRow, Variant


def pretended(parts: Parts, rows: Sequence[PrefillRow], variant: Variant) -> Outcome | None:
    """Take the chunks for computed; the token after a prompt is its last one again.

    Equal tokens in all requests would choose the same experts, and a mixture would read fewer of them than it does.
    """
    assert variant.num_logprobs is None, "nobody asks a measurement for log probabilities"
    buffers = parts.seats
    ends = upload([[row.seat, row.start + row.num_tokens] for row in rows], torch.int64, buffers.device)
    buffers.lengths[ends[:, 0]] = ends[:, 1]
    drawing = [row.seat for row in rows if row.samples]
    if not drawing:
        return None
    seats = upload(drawing, torch.int64, buffers.device)
    tokens = buffers.history[seats, buffers.lengths[seats] - 1]
    buffers.append_first(seats, tokens)
    return Outcome(torch.stack([torch.ones_like(seats), torch.zeros_like(seats), tokens], dim=1), None)
