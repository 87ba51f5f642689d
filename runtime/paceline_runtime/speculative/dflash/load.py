"""From a draft checkpoint to a proposer. Called by the engine at start-up, once the target is loaded.

`paceline serve` has checked target and draft from their headers before it loads anything; here the same rules run against
the target as it was loaded, so that no other way in can skip them.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from paceline_compat.checkpoint import read_draft
from paceline_compat.draft_tensors import expected_shapes
from paceline_compat.facts import FULL_ATTENTION, DraftFacts, RopeFacts, TargetFacts
from paceline_compat.pair import Options, Pair
from paceline_compat.rules import find_problems
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.loaders.checkpoint import Checkpoint
from paceline_runtime.loaders.fill import check_shapes, fill
from paceline_runtime.loaders.safetensors_folder import stored_tensors
from paceline_runtime.models.base import ModelShape, TargetModel
from paceline_runtime.speculative.dflash.config import DraftConfig
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.dflash.self_check import check_draft

_log = logging.getLogger(__name__)


class DraftMisfitError(ValueError):
    """A draft that cannot be served with this target; the message lists every broken rule with its remedy."""


def load_proposer(
    path: str | Path,
    target: TargetModel,
    num_steps: int | None,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
) -> DFlashProposer:
    """Load a draft for a target; `num_steps` None means block_size - 1, `dtype` is the engine's.

    Raises MetadataError for files that cannot be trusted and for wrong tensors, DraftMisfitError for a draft that breaks a
    rule, SelfCheckError when this machine's kernels draft another block than the references.
    """
    facts = read_draft(str(path))
    refuse_misfit(facts, target.shape, Options(num_steps=num_steps, max_model_len=max_model_len))
    draft = load_draft(facts, draft_dtype(dtype, device), device)
    proposer = DFlashProposer(draft, target, num_steps or draft.config.block_size - 1)
    _log.info("%s: %s", facts.name, check_draft(proposer, target))
    return proposer


def load_draft(facts: DraftFacts, dtype: torch.dtype, device: torch.device) -> Draft:
    """The draft of a checkpoint that the rules let pass, whatever float dtype it is stored in."""
    checkpoint = Checkpoint(facts.name, facts.architecture, {}, stored_tensors(facts.tensors))
    # A config may claim any size: it is held against the tensors that are there before memory is taken for it.
    check_shapes(checkpoint, expected_shapes(facts))
    parameters = Parameters(dtype, device)
    draft = Draft(DraftConfig.from_facts(facts), parameters)
    fill(checkpoint, parameters)
    return draft


def draft_dtype(engine_dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and wherever the engine runs float16, in which drafts overflow (vLLM #55250); else the engine's."""
    return torch.bfloat16 if device.type == "cuda" or engine_dtype == torch.float16 else engine_dtype


def refuse_misfit(facts: DraftFacts, shape: ModelShape, options: Options) -> None:
    """Raise DraftMisfitError with every rule about drafts that the pair breaks."""
    found = find_problems(Pair(_as_facts(shape), facts, options))
    ours = [p for p in found if not p.is_warning and p.rule.startswith(("draft.", "options.num_steps"))]
    # Wrong tensors are listed one and all when they are read; the rule stops at the first.
    if problems := [p for p in ours if p.rule not in ("draft.tensors", "draft.codebooks")]:
        raise DraftMisfitError(f"{facts.name}: " + "; ".join(map(str, problems)))


def _as_facts(shape: ModelShape) -> TargetFacts:
    """A loaded target in the words of the rules; what no rule about drafts looks at is left at nothing."""
    return TargetFacts(
        name=shape.family,
        format="safetensors",
        architecture=shape.family,
        family=shape.family,
        num_layers=shape.num_layers,
        layer_types=(FULL_ATTENTION,) * shape.num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=0,
        num_heads=shape.num_kv_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        head_rows=shape.vocab_size,
        max_positions=shape.max_positions,
        tie_word_embeddings=False,
        rms_norm_eps=0.0,
        rope=RopeFacts(),
        gdn=None,
        moe=None,
        num_mtp_layers=0,
        eos_token_ids=shape.eos_ids,
        quantization=None,
        dtype="",
    )
