"""From a checkpoint's `mtp.*` tensors to a proposer. Called by the proposer registry for the algorithm `mtp`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline_compat.errors import MetadataError
from paceline_compat.pair import DEFAULT_NUM_STEPS, MAX_NUM_STEPS
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders import open_checkpoint
from paceline_runtime.loaders.checkpoint import Checkpoint
from paceline_runtime.loaders.fill import Progress, check_tensors, fill, fill_dummy
from paceline_runtime.models.base import TargetModel
from paceline_runtime.models.hybrid import HybridDecoder
from paceline_runtime.speculative.mtp.head import MtpHead
from paceline_runtime.speculative.mtp.proposer import MtpProposer

_REMEDY = "use ngram, dflash with a draft, or off"


def load_mtp(
    path: str | Path,
    target: TargetModel,
    num_steps: int | None = None,
    *,
    on_progress: Progress | None = None,
    dummy: bool = False,
) -> MtpProposer:
    """Load the head beside its target, from the same checkpoint, in the target's dtype on its device.

    `dummy` makes random weights. Raises MetadataError (a ValueError) when the target's family or the checkpoint has no head,
    and ValueError for a number of steps outside 1..7.
    """
    steps, most = DEFAULT_NUM_STEPS["mtp"] if num_steps is None else num_steps, MAX_NUM_STEPS["mtp"]
    if not 1 <= steps <= most:
        raise ValueError(f"mtp drafts 1 to {most} tokens a step, not {steps}")
    if not isinstance(target, HybridDecoder):
        raise MetadataError(str(path), f"models of family {target.shape.family} have no MTP head", _REMEDY)
    parameters = Parameters(target.dtype, target.device)
    head = MtpHead(target, parameters)
    if dummy:
        fill_dummy(parameters)
        return MtpProposer(head, steps)
    checkpoint = _head_tensors(open_checkpoint(Path(path)))
    parameters.settle({tensor.name for tensor in checkpoint.tensors})
    check_tensors(checkpoint, parameters)
    fill(checkpoint, parameters, on_progress)
    return MtpProposer(head, steps)


def _head_tensors(checkpoint: Checkpoint) -> Checkpoint:
    """The part of a checkpoint that is the head, under the names `mtp.*`."""
    named = [(tensor.name.removeprefix("model."), tensor) for tensor in checkpoint.tensors]
    tensors = tuple(replace(tensor, name=name) for name, tensor in named if name.startswith("mtp."))
    if not tensors:
        raise MetadataError(checkpoint.name, "holds no MTP head (no tensor mtp.*)", _REMEDY)
    return replace(checkpoint, tensors=tensors)
