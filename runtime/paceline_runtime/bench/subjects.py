"""What a measurement runs: a target of the asked shape, and the proposers that draft for it.

`step` and `share` call it. Weights are random unless the shape is a folder that holds some; a released DFlash 2 draft is
always random, made on the device, since writing gigabytes to a disk first would measure nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from paceline_compat.facts.checkpoint import draft_facts, target_facts
from paceline_compat.facts.records import WholeDraft
from paceline_compat.rules.pair import MAX_NUM_DRAFTS
from paceline_runtime.bench.shapes import SHAPES, Shape, find_shape
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import pick_device, pick_dtype
from paceline_runtime.errors import ConfigError
from paceline_runtime.layers.parameters import Parameters, StorageOf, all_dense
from paceline_runtime.layers.tiles import device_name, tiles_for
from paceline_runtime.loaders import load_target
from paceline_runtime.loaders.fill import fill_dummy
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.init import DraftSizes, draft_content
from paceline_runtime.speculative.dflash.load import draft_dtype
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.registry import load_proposer


@dataclass(frozen=True)
class Subject:
    """A loaded target of a shape; `path` is the folder that holds its `config.json` for as long as the measurement runs.

    `storage_of` is as in `Parameters`, for the target and for proposers.
    """

    shape: Shape
    path: Path
    target: TargetModel
    is_dummy: bool
    storage_of: StorageOf

    def proposer(self, algorithm: str, num_drafts: int | None, max_model_len: int) -> Proposer | None:
        """A fresh proposer; None for `off`. Raises ValueError for an algorithm that this target cannot have."""
        if algorithm == "dflash":
            return dummy_dflash(self._draft_content(), self.target, num_drafts, self.storage_of)
        if algorithm in MAX_NUM_DRAFTS:
            _refuse_deeper(num_drafts, MAX_NUM_DRAFTS[algorithm])
        config = EngineConfig(
            model_path=str(self.path),
            speculative_algorithm=algorithm,  # type: ignore[arg-type]  # the command let only known ones pass
            speculative_num_steps=None if algorithm == "off" else num_drafts,
            dummy_weights=self.is_dummy,
        )
        return load_proposer(config, self.target, max_model_len, storage_of=self.storage_of)

    def _draft_content(self) -> dict[str, Any]:
        if self.shape.draft is not None:
            return dict(self.shape.draft)
        return draft_content(target_facts(self.shape.name, self.shape.target, {}), DraftSizes())


@contextmanager
def subject(args: argparse.Namespace, num_positions: int, storage_of: StorageOf | None = None) -> Iterator[Subject]:
    """The target that the flags describe, with room for `num_positions`. Raises ConfigError with what would do.

    Without `storage_of`, products are cut as `--tiles` says.
    """
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    device = pick_device(args.device)
    dtype = pick_dtype(args.dtype, device)
    shape = find_shape(args.shape)
    storage_of = storage_of or all_dense(tiles_for(device_name(device), dtype, args.tiles))
    if not args.dummy_weights:
        _refuse_without_weights(args)
        target = load_target(args.shape, dtype=dtype, device=device, storage_of=storage_of)
        yield Subject(shape, Path(args.shape), target, False, storage_of)
        return
    shape = shape.with_layers(args.layers).with_positions(num_positions)
    with TemporaryDirectory(prefix="paceline-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape.target))
        target = load_target(folder, dtype=dtype, device=device, dummy=True, storage_of=storage_of)
        yield Subject(shape, Path(folder), target, True, storage_of)


def dummy_dflash(
    content: dict[str, Any], target: TargetModel, num_drafts: int | None, storage_of: StorageOf | None = None
) -> DFlashProposer:
    """A DFlash 2 proposer with random weights for the draft that `content` describes; k defaults to block_size - 1."""
    facts = draft_facts("random draft", content, {})
    config = WholeDraft.of(facts)
    parameters = Parameters(draft_dtype(target.dtype, target.device), target.device, storage_of=storage_of)
    draft = Draft(config, parameters)
    fill_dummy(parameters)
    _refuse_deeper(num_drafts, config.block_size - 1)
    return DFlashProposer(draft, target, num_drafts or config.block_size - 1)


def _refuse_deeper(num_drafts: int | None, most: int) -> None:
    """What is not served is not measured."""
    if num_drafts is not None and num_drafts > most:
        raise ValueError(f"--num-steps {num_drafts} is more than the {most} drafts that are served")


def _refuse_without_weights(args: argparse.Namespace) -> None:
    problems = []
    if args.shape in SHAPES:
        problems.append(f"--shape {args.shape} has no weights here: add --dummy-weights, or name a checkpoint's folder")
    if args.layers is not None:
        problems.append("--layers cuts a random target only: add --dummy-weights or drop it")
    if problems:
        raise ConfigError(problems)
