"""The table of rules: what the runtime serves, and which draft fits which target. One row, one id, one message.

Each row is a pure function of a `Pair`; `check` runs all rows that apply and returns every problem. The same table
answers `paceline serve`, `paceline check`, the webhook and the inspect Job. Ids and reasons are an interface: alerts
and conditions name them, so rows may be added and messages improved, ids not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline_compat.facts.records import DraftFacts, TargetFacts
from paceline_compat.rules import draft as rules_draft
from paceline_compat.rules import fit as rules_fit
from paceline_compat.rules import options as rules_options
from paceline_compat.rules import target as rules_target
from paceline_compat.rules.pair import Finding, Options, Pair
from paceline_compat.rules.verdict import Problem, Verdict

Applies = Callable[[Pair], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row: `find` says what is wrong with a pair to which the rule `applies`, or None."""

    id: str
    reason: str
    applies: Applies
    find: Callable[[Pair], Finding | None]
    is_warning: bool = False


def _unread(pair: Pair) -> bool:
    """The options alone are looked at, whatever the checkpoints."""
    return True


def _always(pair: Pair) -> bool:
    return True


def _known_target(pair: Pair) -> bool:
    return pair.target.family is not None


def _drafted(pair: Pair) -> bool:
    return pair.options.algorithm == "dflash" and pair.maybe_draft is not None


def _dflash2(pair: Pair) -> bool:
    """Only a DFlash 2 draft is asked for DFlash 2 fields; of any other, the architecture is problem enough."""
    return _drafted(pair) and pair.draft.is_dflash2


def _fitting(pair: Pair) -> bool:
    """The draft against a target whose sizes mean something."""
    return _dflash2(pair) and _known_target(pair)


RULES: tuple[Rule, ...] = (
    Rule("options.algorithm", "AlgorithmUnsupported", _unread, rules_options.algorithm),
    Rule("options.tensor_parallel", "TensorParallelUnsupported", _unread, rules_options.tensor_parallel),
    Rule("options.cache_type", "CacheTypeUnsupported", _unread, rules_options.cache_type),
    Rule("options.max_model_len", "MaxModelLenInvalid", _known_target, rules_options.max_model_len),
    Rule("options.num_steps", "NumStepsInvalid", _unread, rules_options.num_drafts),
    Rule("target.architecture", "ArchitectureUnsupported", _always, rules_target.architecture),
    Rule("target.gguf_architecture", "ArchitectureUnsupported", _known_target, rules_target.gguf_architecture),
    Rule("target.split", "FileLayoutUnsupported", _always, rules_target.split),
    Rule("target.quantization", "QuantizationUnsupported", _known_target, rules_target.quantization),
    Rule("target.tensor_type", "QuantizationUnsupported", _known_target, rules_target.tensor_type),
    Rule("target.rope", "RopeUnsupported", _known_target, rules_target.rope),
    Rule("target.layer_types", "LayerTypesUnsupported", _known_target, rules_target.layer_types),
    Rule("target.layer_variant", "LayerVariantUnsupported", _known_target, rules_target.layer_variant),
    Rule("target.gdn", "LayerSizesUnsupported", _known_target, rules_target.gdn),
    Rule("target.tensors", "TensorsIncomplete", _known_target, rules_target.tensors),
    Rule("target.mtp", "MtpHeadMissing", _known_target, rules_target.mtp),
    Rule("draft.missing", "DraftMissing", _always, rules_draft.missing),
    Rule("draft.unused", "DraftUnused", _always, rules_draft.unused),
    Rule("draft.architecture", "ArchitectureUnsupported", _drafted, rules_draft.architecture),
    Rule("draft.quantization", "QuantizationUnsupported", _drafted, rules_draft.quantization),
    Rule("draft.is_causal", "CausalDraft", _dflash2, rules_draft.is_causal),
    Rule("draft.layer_types", "LayerTypesUnsupported", _dflash2, rules_draft.layer_types),
    Rule("draft.sliding_window", "LayerTypesUnsupported", _dflash2, rules_draft.sliding_window),
    Rule("draft.rope", "RopeUnsupported", _dflash2, rules_draft.rope),
    Rule("draft.rope_partial", "RopeUnsupported", _dflash2, rules_draft.rope_partial),
    Rule("draft.rope_layout", "RopeUnsupported", _dflash2, rules_draft.rope_layout),
    Rule("draft.output_multiplier", "ScalingUnsupported", _dflash2, rules_draft.output_multiplier),
    Rule("draft.input_embedding_scale", "ScalingUnsupported", _dflash2, rules_draft.input_embedding_scale),
    Rule("draft.final_logit_softcapping", "ScalingUnsupported", _dflash2, rules_draft.final_logit_softcapping),
    Rule("draft.layer_variant", "LayerVariantUnsupported", _dflash2, rules_draft.layer_variant),
    Rule("draft.selector_rank", "SelectorUnsupported", _dflash2, rules_draft.selector_rank),
    Rule("draft.selector_top_k", "SelectorUnsupported", _dflash2, rules_draft.selector_top_k),
    Rule("draft.head_dim", "LayerSizesUnsupported", _dflash2, rules_draft.head_dim),
    Rule("draft.num_kv_heads", "LayerSizesUnsupported", _dflash2, rules_draft.num_kv_heads),
    Rule("draft.conv_kernel_size", "ConvolutionUnsupported", _dflash2, rules_draft.conv_kernel_size),
    Rule("draft.conv_group_size", "ConvolutionUnsupported", _dflash2, rules_draft.conv_group_size),
    Rule("draft.block_size", "BlockSizeInvalid", _dflash2, rules_draft.block_size),
    Rule("draft.target_layer_ids", "TargetLayersInvalid", _dflash2, rules_draft.target_layer_ids),
    Rule("draft.target_layer_range", "LayerCountMismatch", _fitting, rules_fit.target_layer_range),
    Rule("draft.num_target_layers", "LayerCountMismatch", _fitting, rules_fit.num_target_layers),
    Rule("draft.hidden_size", "HiddenSizeMismatch", _fitting, rules_fit.hidden_size),
    Rule("draft.vocab_size", "VocabMismatch", _fitting, rules_fit.vocab_size),
    Rule("draft.mask_token_id", "MaskTokenInvalid", _dflash2, rules_fit.mask_token_id),
    Rule("draft.max_positions", "MaxModelLenInvalid", _fitting, rules_fit.max_positions),
    Rule("draft.codebooks", "TensorsIncomplete", _dflash2, rules_draft.codebooks),
    Rule("draft.tensors", "TensorsIncomplete", _dflash2, rules_draft.tensors),
    Rule("draft.float16", "Float16Draft", _dflash2, rules_draft.float16, is_warning=True),
)


def check(target: TargetFacts, draft: DraftFacts | None, options: Options | None = None) -> Verdict:
    """Every rule that `target` with `draft` breaks under `options`, in the table's order."""
    pair = Pair(target, draft, options or Options())
    return Verdict(target.name, draft.name if draft else None, find_problems(pair))


def option_problems(options: Options) -> tuple[Problem, ...]:
    """What is wrong with the options whatever the checkpoints, for sources that cannot be read yet."""
    return find_problems(Pair(None, None, options), tuple(rule for rule in RULES if rule.applies is _unread))


def find_problems(pair: Pair, rules: tuple[Rule, ...] = RULES) -> tuple[Problem, ...]:
    """The table, or some rows of it, applied to one pair."""
    found = ((rule, rule.find(pair)) for rule in rules if rule.applies(pair))
    return tuple(
        Problem(rule.id, rule.reason, finding.field, finding.message, finding.remedy, rule.is_warning)
        for rule, finding in found
        if finding is not None
    )
