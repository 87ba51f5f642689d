"""From a path to a loaded model: `load_target`. Formats and families are imported when a path asks for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from paceline_compat import sole_gguf
from paceline_compat.errors import MetadataError
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders.checkpoint import Checkpoint
from paceline_runtime.loaders.fill import Progress, check_tensors, fill, fill_dummy
from paceline_runtime.models.base import TargetModel
from paceline_runtime.models.config import ConfigError
from paceline_runtime.models.registry import family_builder

__all__ = ["load_target", "open_checkpoint"]

_LOG = logging.getLogger(__name__)
_PREFIXES = ("model.language_model", "model")


def load_target(
    path: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    on_progress: Progress | None = None,
    dummy: bool = False,
) -> TargetModel:
    """Load the target in a Hugging Face folder or a .gguf file, weights in `dtype` on `device`.

    `dummy` makes random weights from the config alone. Raises MetadataError (a ValueError) naming the file, every field
    or tensor that is wrong, and what would do.
    """
    checkpoint = open_checkpoint(Path(path), config_only=dummy)
    if checkpoint.config.get("text_config"):
        _LOG.info("%s: the vision tower is not loaded, only text is served", checkpoint.name)
    if dummy:
        model, parameters = _build(checkpoint, dtype, torch.device(device))
        fill_dummy(parameters)
        return model
    # A config may claim any size: it is held against the tensors that are there before memory is taken for it.
    _, claimed = _build(checkpoint, dtype, torch.device("meta"))
    check_tensors(checkpoint, claimed)
    model, parameters = _build(checkpoint, dtype, torch.device(device))
    fill(checkpoint, parameters, on_progress)
    return model


def _build(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> tuple[TargetModel, Parameters]:
    """The model over memory that is not filled yet, which on the device `meta` takes none."""
    parameters = Parameters(dtype, device)
    try:
        model = family_builder(checkpoint.architecture)(_as_stored(checkpoint), parameters)
    except ConfigError as error:
        raise MetadataError(checkpoint.name, str(error)) from error
    parameters.settle({tensor.name for tensor in checkpoint.tensors})
    return model, parameters


def open_checkpoint(path: Path, *, config_only: bool = False) -> Checkpoint:
    """Open a folder or file by its kind, reading config and headers."""
    path = sole_gguf(path)
    if path.suffix == ".gguf":
        from paceline_runtime.loaders.gguf_file import open_gguf

        return open_gguf(path, config_only=config_only)
    from paceline_runtime.loaders.safetensors_folder import open_folder

    return open_folder(path, config_only=config_only)


def _as_stored(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config with two facts that only tensors tell: `tensor_prefix`, under which the text part is stored, and
    `vocab_rows`, where the embedding has more rows than the config's vocabulary has ids.

    transformers stores the text part of a multimodal model alone with the names that it had inside: a config without
    `text_config` is no sign of plain names.
    """
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}.embed_tokens.weight" in shapes), None)
    if prefix is None:
        return dict(checkpoint.config)
    stored: dict[str, Any] = {"tensor_prefix": prefix}
    vocab_size = {**checkpoint.config, **(checkpoint.config.get("text_config") or {})}.get("vocab_size")
    shape = shapes[f"{prefix}.embed_tokens.weight"]
    if isinstance(vocab_size, int) and shape and shape[0] > vocab_size:
        stored["vocab_rows"] = shape[0]
    return {**checkpoint.config, **stored}
