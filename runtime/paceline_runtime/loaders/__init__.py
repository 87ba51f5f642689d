"""From a path, or the facts that were read there, to a loaded model: `load_target`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from paceline_compat import Options, check, read_target
from paceline_compat.errors import MetadataError, MissingFileError
from paceline_compat.facts.records import TargetFacts
from paceline_compat.facts.target_tensors import expected_shapes, is_unread
from paceline_compat.formats.tensors import TensorInfo
from paceline_runtime.layers.parameters import Parameters, StorageOf
from paceline_runtime.loaders.fill import Progress, check_tensors, fill, fill_dummy
from paceline_runtime.loaders.read import read_target_tensor
from paceline_runtime.models.base import TargetModel
from paceline_runtime.models.registry import build_model
from paceline_runtime.text.end_tokens import end_ids

__all__ = ["load_target", "read_checked"]

ALONE = Options("off")
_LOG = logging.getLogger(__name__)


def read_checked(path: str | Path, options: Options = ALONE, *, with_tensors: bool = True) -> TargetFacts:
    """The facts of a target that no rule refuses under `options`. Raises MetadataError with all that is wrong.

    Missing and misshapen tensors are left for `load_target`, which lists them all.
    """
    facts = read_target(str(path), with_tensors=with_tensors)
    problems = [problem for problem in check(facts, None, options).errors if problem.rule != "target.tensors"]
    if problems:
        raise MetadataError(facts.name, "; ".join(map(str, problems)))
    return facts


def load_target(
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    facts: TargetFacts | None = None,
    on_progress: Progress | None = None,
    dummy: bool = False,
    storage_of: StorageOf | None = None,
) -> TargetModel:
    """Load the target in a Hugging Face folder or a .gguf file, weights in `dtype` on `device`.

    `facts` are its own, where they have been read and judged before. `dummy` makes random weights from the config alone.
    `storage_of` is as in `Parameters`.
    Raises MetadataError (a ValueError) naming the file, every field or tensor that is wrong, and what would do.
    """
    path, device = Path(path), torch.device(device)
    if not path.exists():
        raise MissingFileError(str(path), "no such file or folder", "name a checkpoint folder or a .gguf file")
    facts = read_checked(path, with_tensors=not dummy) if facts is None else facts
    facts = replace(facts, eos_token_ids=end_ids(path, facts.eos_token_ids))
    if facts.is_multimodal:
        _LOG.info("%s: the vision tower is not loaded, only text is served", facts.name)
    if not dummy:  # a config may claim any size: the tensors that are there must bear it out before memory is taken
        check_tensors(facts.name, _read_tensors(facts), expected_shapes(facts))
    parameters = Parameters(dtype, device, storage_of=storage_of)
    model = build_model(facts, parameters)
    parameters.settle(facts.tensors)
    assert parameters.shapes() == expected_shapes(facts), "a model asks for the tensors that its facts let expect"
    if dummy:
        fill_dummy(parameters)
    else:
        _fill(facts, parameters, on_progress)
    return model


def _read_tensors(facts: TargetFacts) -> dict[str, TensorInfo]:
    return {name: info for name, info in facts.tensors.items() if not is_unread(facts, name)}


def _fill(facts: TargetFacts, parameters: Parameters, on_progress: Progress | None) -> None:
    def read(name: str) -> torch.Tensor:
        return read_target_tensor(facts, name, parameters.device)

    fill(facts.name, _read_tensors(facts), parameters, read, on_progress)
    embedding = parameters.places[f"{facts.prefix}.embed_tokens.weight"]
    for name in facts.tensors:
        if facts.is_tied_head(name) and not embedding.holds(read(name)):  # transformers unties a head that differs
            what = f"{name} differs from the embedding, and the config ties them (tie_word_embeddings)"
            raise MetadataError(facts.name, what, "set tie_word_embeddings to false, or remove the tensor")
