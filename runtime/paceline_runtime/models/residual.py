"""The residual stream of a decoder: what a part of a layer gives is added where the next part is normed, in one pass.

Called by the families with their layers. It refuses to know what layers are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from paceline_kernels.add_norm import add
from paceline_runtime.layers.norm import RmsNorm
from paceline_runtime.models.base import FeatureSink

Stream = tuple[torch.Tensor, torch.Tensor]
"""Rows [N, H] so far, and what is still to be added to them: rows, or parts of rows [P, N, H]."""
Context = TypeVar("Context", contravariant=True)


class Layer(Protocol[Context]):
    """One decoder layer."""

    def __call__(self, hidden: torch.Tensor, added: torch.Tensor | None, context: Context) -> Stream:
        """The stream after this layer; `added` is None before the first one."""
        ...


def through_layers(
    layers: Sequence[Layer[Context]], hidden: torch.Tensor, context: Context, norm: RmsNorm, sink: FeatureSink | None
) -> torch.Tensor:
    """Rows [N, H] through all layers, and normed: [N, H]. A tapped layer's output is told to the sink."""
    added: torch.Tensor | None = None
    for index, layer in enumerate(layers):
        hidden, added = layer(hidden, added, context)
        if sink is not None and sink.wants(index):
            hidden, added = add(hidden, added), None
            sink.layer_output(index, hidden)
    return norm.add(hidden, added)[1]
