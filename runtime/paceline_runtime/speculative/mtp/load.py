"""From a checkpoint's `mtp.*` tensors to a proposer. The proposer registry calls it for the algorithm `mtp`."""

from __future__ import annotations

from paceline_compat.errors import MetadataError
from paceline_compat.facts.target_tensors import expected_mtp_shapes, mtp_name
from paceline_compat.rules.pair import MAX_NUM_DRAFTS
from paceline_runtime.layers.parameters import Parameters, StorageOf
from paceline_runtime.loaders.fill import Progress, check_tensors, fill, fill_dummy
from paceline_runtime.loaders.read import read_tensor
from paceline_runtime.models.base import TargetModel
from paceline_runtime.models.decoder import Decoder
from paceline_runtime.speculative.mtp.head import MtpHead
from paceline_runtime.speculative.mtp.proposer import MtpProposer

_REMEDY = "use ngram, dflash with a draft, or off"


def load_mtp(
    target: TargetModel,
    num_drafts: int,
    *,
    on_progress: Progress | None = None,
    dummy: bool = False,
    storage_of: StorageOf | None = None,
) -> MtpProposer:
    """Load the head beside its target, from the same checkpoint, in the target's dtype on its device.

    `dummy` makes random weights. Raises MetadataError (a ValueError) when the target's family or the checkpoint has no head,
    and ValueError for a number of drafts outside 1..7.
    """
    facts, most = target.facts, MAX_NUM_DRAFTS["mtp"]
    if not 1 <= num_drafts <= most:
        raise ValueError(f"mtp drafts 1 to {most} tokens a step, not {num_drafts}")
    if not isinstance(target, Decoder) or facts.gdn is None:
        raise MetadataError(facts.name, f"models of family {facts.family} have no MTP head", _REMEDY)
    tensors = {mtp_name(name): info for name, info in facts.tensors.items() if facts.component_of(name) == "mtp"}
    if not (tensors or dummy):
        raise MetadataError(facts.name, "holds no MTP head (no tensor mtp.*)", _REMEDY)
    shapes = expected_mtp_shapes(facts)
    if not dummy:
        check_tensors(facts.name, tensors, shapes)
    parameters = Parameters(target.dtype, target.device, storage_of=storage_of)
    head = MtpHead(target, parameters)
    parameters.settle(tensors)
    assert parameters.shapes() == shapes, "the head asks for the tensors that its target's facts let expect"
    if dummy:
        fill_dummy(parameters)
    else:
        fill(facts.name, tensors, parameters, lambda name: read_tensor(tensors[name], target.device), on_progress)
    return MtpProposer(head, num_drafts)
