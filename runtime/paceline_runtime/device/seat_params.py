"""Sampling parameters by seat: written when a request takes its seat, gathered by every step of that request.

`SeatBuffers` owns them. All of a request's numbers are one column of two tables, so a step gathers them in two launches.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from paceline_kernels.step_inputs import Choices
from paceline_runtime.device.transfer import upload
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.step import Start, Variant

_NEUTRAL_INTS = (0, 0, 0, 1)
"""key, top_k, prompt length, greedy: an inert row is greedy, so that nothing is drawn for it."""
_NEUTRAL_FLOATS = (0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
"""temperature, top_p, min_p, presence, frequency and repetition penalty."""


class SeatParams:
    """Tables of all seats; seat 0 is the dummy and keeps neutral values.

    ints int64 [4, S], floats float64 [6, S]; bias_ids int64, bias_values float64 [S, MAX_LOGIT_BIAS], of value 0 past a
    request's biases.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._ints, self._floats = tensors["int_params"], tensors["float_params"]
        self._bias_ids, self._bias_values = tensors["bias_ids"], tensors["bias_values"]
        self._device = self._ints.device
        for table, neutral in ((self._ints, _NEUTRAL_INTS), (self._floats, _NEUTRAL_FLOATS)):
            table.copy_(torch.tensor(neutral, dtype=table.dtype)[:, None])
        self._neutral = self._gathered(torch.zeros(1, dtype=torch.int64, device=self._device), Variant())

    def start(self, start: Start) -> None:
        """A request takes a seat."""
        params = start.params
        ints = (start.key, params.top_k, start.num_prompt, int(params.is_greedy))
        penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
        self._ints[:, start.seat] = upload(ints, torch.int64, self._device)
        floats = (params.temperature, params.top_p, params.min_p, *penalties)
        self._floats[:, start.seat] = upload(floats, torch.float64, self._device)
        self._bias_values[start.seat].zero_()
        if params.logit_bias:
            count = len(params.logit_bias)
            self._bias_ids[start.seat, :count] = upload(list(params.logit_bias), torch.int64, self._device)
            self._bias_values[start.seat, :count] = upload(list(params.logit_bias.values()), torch.float64, self._device)

    @property
    def choices(self) -> Choices:
        """What drafts are chosen by, of all seats."""
        return Choices(keys=self._ints[0], greedy=self._ints[3], temperature=self._floats[0])

    def of(self, seats: torch.Tensor, variant: Variant) -> RowParams:
        """The parameters of the requests in `seats` int64 [B]; neutral ones, without a launch, where nobody reads any."""
        if variant.is_plain:
            return self._neutral.repeated(len(seats))
        return self._gathered(seats, variant)

    def _gathered(self, seats: torch.Tensor, variant: Variant) -> RowParams:
        key, top_k, prompt_length, greedy = self._ints.index_select(1, seats)
        temperature, top_p, min_p, presence, frequency, repetition = self._floats.index_select(1, seats)
        return RowParams(
            variant=variant,
            keys=key,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            greedy=greedy > 0,
            prompt_lengths=prompt_length,
            presence=presence,
            frequency=frequency,
            repetition=repetition,
            bias_ids=self._bias_ids[seats, : variant.num_biases],
            bias_values=self._bias_values[seats, : variant.num_biases],
        )
