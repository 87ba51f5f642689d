"""From a draft checkpoint to a proposer. The registry calls it at start-up, once the target is loaded.

`paceline serve` has checked target and draft from their headers before it loads anything; this module applies the same rules to
the target as it was loaded, so that no other way in can skip them.
"""

from __future__ import annotations

import logging

import torch

from paceline_compat.facts.draft_tensors import expected_shapes
from paceline_compat.facts.records import DraftFacts, TargetFacts, WholeDraft
from paceline_compat.memory import parts
from paceline_compat.rules.pair import Options, Pair
from paceline_compat.rules.table import find_problems
from paceline_runtime.cache.allocation import dtype_name, torch_dtype
from paceline_runtime.layers.parameters import Parameters, StorageOf
from paceline_runtime.loaders.fill import check_tensors, fill
from paceline_runtime.loaders.read import read_tensor
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.dflash.self_check import check_draft

_log = logging.getLogger(__name__)


class DraftMisfitError(ValueError):
    """A draft that cannot be served with this target; the message lists every broken rule with its remedy."""


def load_proposer(
    facts: DraftFacts,
    target: TargetModel,
    num_drafts: int,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    storage_of: StorageOf | None = None,
) -> DFlashProposer:
    """Load the draft of these facts for a target; `dtype` is the engine's.

    Raises DraftMisfitError for a draft that breaks a rule, MetadataError for wrong tensors, SelfCheckError when this machine's
    kernels draft another block than the references.
    """
    refuse_misfit(facts, target.facts, Options(num_drafts=num_drafts, max_model_len=max_model_len))
    proposer = DFlashProposer(load_draft(facts, draft_dtype(dtype, device), device, storage_of), target, num_drafts)
    _log.info("%s: %s", facts.name, check_draft(proposer, target))
    return proposer


def load_draft(facts: DraftFacts, dtype: torch.dtype, device: torch.device, storage_of: StorageOf | None = None) -> Draft:
    """The draft of a checkpoint that the rules let pass, whatever float dtype it is stored in."""
    shapes = expected_shapes(facts)
    # A config may claim any size: the tensors that are there must bear it out before memory is taken.
    check_tensors(facts.name, facts.tensors, shapes)
    parameters = Parameters(dtype, device, storage_of=storage_of)
    draft = Draft(WholeDraft.of(facts), parameters)
    assert parameters.shapes() == shapes, "a draft asks for the tensors that its facts let expect"
    fill(facts.name, facts.tensors, parameters, lambda name: read_tensor(facts.tensors[name], device))
    return draft


def draft_dtype(engine_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a draft beside a target of this engine."""
    return torch_dtype(parts.draft_dtype(dtype_name(engine_dtype), on_gpu=device.type == "cuda"))


def refuse_misfit(facts: DraftFacts, target: TargetFacts, options: Options) -> None:
    """Raise DraftMisfitError with every rule about drafts that the pair breaks."""
    found = find_problems(Pair(target, facts, options))
    ours = [p for p in found if not p.is_warning and p.rule.startswith(("draft.", "options.num_steps"))]
    # Reading lists all wrong tensors; the rule would stop at the first.
    if problems := [p for p in ours if p.rule not in ("draft.tensors", "draft.codebooks")]:
        raise DraftMisfitError(f"{facts.name}: " + "; ".join(map(str, problems)))
