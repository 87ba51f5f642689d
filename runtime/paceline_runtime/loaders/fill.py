"""Puts a checkpoint's tensors into a model's memory, or random numbers where a bench needs no checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.tensors import name_some
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders.checkpoint import Checkpoint

Progress = Callable[[int, int], None]
"""Told (bytes read, bytes in all) after each tensor."""

_LISTED = 20


def check_tensors(checkpoint: Checkpoint, parameters: Parameters) -> None:
    """Compare names and shapes, before anything is read. Raises MetadataError that lists every difference."""
    tensors = tuple(tensor for tensor in checkpoint.tensors if not parameters.is_ignored(tensor.name))
    check_shapes(replace(checkpoint, tensors=tensors), {name: place.shape for name, place in parameters.places.items()})


def check_shapes(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """The same with what is wanted as names and shapes."""
    stored = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in stored]
    problems += [f"surplus {name} {list(shape)}" for name, shape in stored.items() if name not in shapes]
    problems += [
        f"{name} is {list(stored[name])} and must be {list(shape)}"
        for name, shape in shapes.items()
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
        if not place.is_finite():
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
        if kept is not None and not kept.holds(tensor.read(parameters.device)):
            what = f"{tensor.name} differs from the embedding, and the config ties them (tie_word_embeddings)"
            raise MetadataError(checkpoint.name, what, "set tie_word_embeddings to false, or remove the tensor")


def fill_dummy(parameters: Parameters) -> None:
    """Random numbers everywhere, which give finite outputs: for measuring speed only."""
    generator = torch.Generator(parameters.device).manual_seed(0)
    for place in parameters.places.values():
        place.fill_dummy(generator)
