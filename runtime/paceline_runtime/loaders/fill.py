"""Puts a checkpoint's tensors into a model's memory, or random numbers where a bench needs no checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline_compat.errors import MetadataError
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""Told (bytes read, bytes in all) after each tensor."""

_SPREAD = 0.02
_LISTED = 20


def check_tensors(checkpoint: Checkpoint, parameters: Parameters) -> None:
    """Compare names and shapes, before anything is read. Raises MetadataError that lists every difference."""
    stored = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    places = {name: tuple(place.view.shape) for name, place in parameters.places.items()}
    problems = [f"missing {name} {list(shape)}" for name, shape in places.items() if name not in stored]
    problems += [f"surplus {n} {list(s)}" for n, s in stored.items() if n not in places and not parameters.is_ignored(n)]
    problems += [
        f"{name} is {list(stored[name])} and must be {list(shape)}"
        for name, shape in places.items()
        if stored.get(name, shape) != shape
    ]
    if problems:
        more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise MetadataError(checkpoint.name, "tensors do not fit its config: " + "; ".join(problems[:_LISTED]) + more)


def fill(checkpoint: Checkpoint, parameters: Parameters, on_progress: Progress | None = None) -> None:
    """Copy every tensor into its place, one at a time."""
    wanted = [tensor for tensor in checkpoint.tensors if tensor.name in parameters.places]
    total, done = sum(tensor.num_bytes for tensor in wanted), 0
    for tensor in wanted:
        parameters.places[tensor.name].fill(tensor.read(parameters.device))
        done += tensor.num_bytes
        if on_progress is not None:
            on_progress(done, total)


def fill_dummy(parameters: Parameters) -> None:
    """Ones in vectors, small normal noise in everything larger: finite outputs, for measuring speed only."""
    generator = torch.Generator(parameters.device).manual_seed(0)
    for place in parameters.places.values():
        if place.view.ndim == 1:
            place.view.fill_(1.0)
        else:
            place.view.normal_(0.0, _SPREAD, generator=generator)
