"""Puts a checkpoint's tensors into a model's memory, or random numbers where a bench needs no checkpoint.

`load_target` and the loaders of drafts call it. It knows names, shapes and places, and no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from paceline_compat.errors import MetadataError
from paceline_compat.formats.tensors import TensorInfo, name_some
from paceline_runtime.layers.parameters import Parameters

Progress = Callable[[int, int], None]
"""Told (bytes read, bytes in all) after each tensor."""

_LISTED = 20


def check_tensors(source: str, stored: Mapping[str, TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare names and shapes, before anything is read. Raises MetadataError that lists every difference."""
    problems = [f"missing {name} {list(shape)}" for name, shape in shapes.items() if name not in stored]
    problems += [f"surplus {name} {list(info.shape)}" for name, info in stored.items() if name not in shapes]
    problems += [
        f"{name} is {list(stored[name].shape)} and must be {list(shape)}"
        for name, shape in shapes.items()
        if name in stored and stored[name].shape != shape
    ]
    if problems:
        more = f"; and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise MetadataError(source, "tensors do not fit its config: " + "; ".join(problems[:_LISTED]) + more)


def fill(
    source: str,
    stored: Mapping[str, TensorInfo],
    parameters: Parameters,
    read: Callable[[str], torch.Tensor],
    on_progress: Progress | None = None,
) -> None:
    """Copy every tensor into its place, one at a time, in the order of the file, so that reads are sequential.

    Raises MetadataError naming those that are not finite there.
    """
    wanted = sorted(stored.items(), key=lambda item: (item[1].file, item[1].offset))
    total, done = sum(info.num_bytes for _, info in wanted), 0
    spoiled: list[str] = []
    for name, info in wanted:
        place = parameters.places[name]
        place.fill(read(name))
        if not place.is_finite():
            spoiled.append(name)
        done += info.num_bytes
        if on_progress is not None:
            on_progress(done, total)
    if spoiled:
        what = f"NaN or infinite values, as stored or in {parameters.dtype}, in {name_some(spoiled)}"
        raise MetadataError(source, what, "download the checkpoint again, or use another --dtype")


def fill_dummy(parameters: Parameters) -> None:
    """Put random numbers everywhere, which give finite outputs: for measuring speed only."""
    generator = torch.Generator(parameters.device).manual_seed(0)
    for place in parameters.places.values():
        place.fill_dummy(generator)
