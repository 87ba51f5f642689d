"""Puts a checkpoint's tensors into a model's memory, or random numbers where a bench needs no checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.tensors import name_some
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""Told (bytes read, bytes in all) after each tensor."""

_SPREAD = 0.02
_LISTED = 20
_ROWS = 4096


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
    """Copy every tensor into its place, one at a time. Raises MetadataError naming those that are not finite there."""
    wanted = [tensor for tensor in checkpoint.tensors if tensor.name in parameters.places]
    total, done = sum(tensor.num_bytes for tensor in wanted), 0
    spoiled: list[str] = []
    for tensor in wanted:
        place = parameters.places[tensor.name]
        place.fill(tensor.read(parameters.device))
        if not _is_finite(place.view):
            spoiled.append(tensor.name)
        done += tensor.num_bytes
        if on_progress is not None:
            on_progress(done, total)
    if spoiled:
        what = f"NaN or infinite values, as stored or in {parameters.dtype}, in {name_some(spoiled)}"
        raise MetadataError(checkpoint.name, what, "download the checkpoint again, or use another --dtype")
    _check_copies(checkpoint, parameters)


def _check_copies(checkpoint: Checkpoint, parameters: Parameters) -> None:
    """A head beside the embedding that the config ties it to is read only here: transformers unties one that differs."""
    for tensor in checkpoint.tensors:
        kept = parameters.copies.get(tensor.name)
        if kept is not None and not _is_equal(kept, tensor.read(parameters.device)):
            what = f"{tensor.name} differs from the embedding, and the config ties them (tie_word_embeddings)"
            raise MetadataError(checkpoint.name, what, "set tie_word_embeddings to false, or remove the tensor")


def _is_equal(kept: torch.Tensor, stored: torch.Tensor) -> bool:
    """Some rows at a time, which takes no second copy."""
    parts = zip(torch.split(kept, _ROWS), torch.split(stored, _ROWS), strict=False)
    return kept.shape == stored.shape and all(torch.equal(ours, theirs.to(ours.dtype)) for ours, theirs in parts)


def _is_finite(values: torch.Tensor) -> bool:
    """By the sum, which takes no memory beside the weights; `isfinite` of an embedding takes gigabytes."""
    wide = values.dtype if values.dtype == torch.float64 else torch.float32
    return math.isfinite(values.sum(dtype=wide).item())


def fill_dummy(parameters: Parameters) -> None:
    """Ones in vectors, small normal noise in everything larger: finite outputs, for measuring speed only."""
    generator = torch.Generator(parameters.device).manual_seed(0)
    for place in parameters.places.values():
        if place.view.ndim == 1:
            place.view.fill_(1.0)
        else:
            place.view.normal_(0.0, _SPREAD, generator=generator)
