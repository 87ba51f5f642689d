"""Buffers by seat: a request finds nothing of the one before it, and its parameters are what it asked for."""

import torch

from paceline_compat.memory.buffers import seat_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.cache.allocation import allocate
from paceline_runtime.device.seats import SeatBuffers
from paceline_runtime.params import MAX_LOGIT_BIAS, SamplingParams
from paceline_runtime.step import PageChange, Start, Variant

CPU = torch.device("cpu")


def start(seat, params=None, *, tokens=(5, 6, 7), pages=(4, 9), num_cached=2):
    """A request that has some of its tokens cached."""
    return Start(seat, params or SamplingParams(), -seat, len(tokens), tokens, num_cached, pages, 3, 0)


def make_buffers():
    return SeatBuffers(allocate(MemoryLayout(seat_buffers(320, 1), num_seats=4), CPU), 320)


def test_a_seats_pages_are_dummies_past_its_own():
    """Also after a longer request: what is read past the end must never be another's page."""
    buffers, seats = make_buffers(), torch.tensor([2, 0])
    buffers.start(start(2, pages=(1, 2, 3, 4, 5)))
    buffers.start(start(2, pages=(7,)))
    buffers.change_pages([PageChange(2, 1, (8, 9)), PageChange(1, 0, (6,))])

    assert [[7, 8, 9, 0, 0], [0, 0, 0, 0, 0]] == buffers.pages_of(seats, 5).tolist()
    buffers.change_pages([PageChange(2, 2, (3, 4))])
    assert [[7, 8, 3, 4], [0, 0, 0, 0]] == buffers.pages_of(seats, 4).tolist()


def test_parameters_are_gathered_as_they_were_given():
    """Of any rows, in any order; a batch with fewer biases than some request has gathers no more than it needs."""
    buffers = make_buffers()
    some = SamplingParams(temperature=0.5, top_k=7, top_p=0.75, min_p=0.125, logit_bias={11: -2.0, 3: 1e30})
    penalized = SamplingParams(presence_penalty=0.5, frequency_penalty=-1.5, repetition_penalty=1.25, logit_bias={8: 1.0})
    buffers.start(start(1, some))
    buffers.start(start(3, penalized, tokens=(1, 2)))
    rows = buffers.params.of(torch.tensor([3, 0, 1]), Variant(is_sampled=True, has_penalties=True, num_biases=2))

    assert [-3, 0, -1] == rows.keys.tolist()
    assert [2, 0, 3] == rows.prompt_lengths.tolist()
    assert [True, True, False] == rows.greedy.tolist()
    assert [0.0, 0.0, 0.5] == rows.temperature.tolist()
    assert [0, 0, 7] == rows.top_k.tolist()
    assert [1.0, 1.0, 0.75] == rows.top_p.tolist()
    assert [0.0, 0.0, 0.125] == rows.min_p.tolist()
    assert [0.5, 0.0, 0.0] == rows.presence.tolist()
    assert [-1.5, 0.0, 0.0] == rows.frequency.tolist()
    assert [1.25, 1.0, 1.0] == rows.repetition.tolist()
    assert [[1.0, 0.0], [0.0, 0.0], [-2.0, 1e30]] == rows.bias_values.tolist()
    assert [8, 11, 3] == [rows.bias_ids[0, 0], *rows.bias_ids[2]]
    assert all(part.is_contiguous() for part in (rows.keys, rows.temperature, rows.top_k)), "kernels read them as such"


def test_a_request_inherits_no_bias():
    """The most that one may have, then another in its seat with fewer, beside one with many."""
    buffers, most = make_buffers(), dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)
    buffers.start(start(1, SamplingParams(logit_bias=most)))
    assert MAX_LOGIT_BIAS == buffers.params.of(torch.tensor([1]), Variant(num_biases=MAX_LOGIT_BIAS)).bias_values.sum()
    buffers.start(start(1, SamplingParams(logit_bias={40: -3.0})))
    rows = buffers.params.of(torch.tensor([1]), Variant(num_biases=MAX_LOGIT_BIAS))

    assert [40] == rows.bias_ids[rows.bias_values != 0].tolist()


def test_runs_are_committed_up_to_their_count():
    """The next pending token is the last that counts; a row of the dummy moves nothing."""
    buffers, seats = make_buffers(), torch.tensor([1, 0, 2])
    buffers.start(start(1))
    buffers.start(start(2, num_cached=0))
    buffers.lengths[:] = torch.tensor([0, 2, 2, 0])
    committed = buffers.append(seats, torch.tensor([[20, 21, 22], [30, 31, 32], [40, 41, 42]]), torch.tensor([2, 1, 3]))

    assert [2, 0, 3] == committed.tolist()
    assert [0, 4, 5, 0] == buffers.lengths.tolist()
    assert [0, 2, 3, 0] == buffers.replay.tolist()
    assert [21, 42] == buffers.history[[1, 2], buffers.lengths[1:3]].tolist()
    assert [5, 6, 7, 20, 21] == buffers.history[1, :5].tolist()


def test_nothing_is_gathered_where_nothing_is_read():
    """Rows that take the likeliest token are greedy whatever else they ask for: neutral parameters stand for theirs."""
    buffers = make_buffers()
    buffers.start(start(1, SamplingParams(top_k=7)))
    rows = buffers.params.of(torch.tensor([1, 2, 0]), Variant())

    assert [True] * 3 == rows.greedy.tolist()
    assert [0.0] * 3 == rows.temperature.tolist()
    assert (3, 0) == rows.bias_ids.shape
    assert rows.keys.data_ptr() == buffers.params.of(torch.tensor([2]), Variant()).keys.data_ptr()
