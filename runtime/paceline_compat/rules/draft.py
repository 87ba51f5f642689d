"""Rules about a DFlash 2 draft by itself, for rows of the `table`.

The draft forward here applies neither output nor input scaling nor a soft cap, only the default full NeoX rope, silu
and plain RMSNorm: a draft that needs more would run and accept nothing, so it is refused by name. Targets without
Gated DeltaNet layers are served.
"""

from __future__ import annotations

from paceline_compat.facts.draft_tensors import CODEBOOKS, expected_shapes
from paceline_compat.facts.records import FLOAT_DTYPES, SLIDING_ATTENTION, is_power_of_two
from paceline_compat.formats.tensors import differences, name_some
from paceline_compat.rules.pair import Finding, Pair

REPAIR = "repair the draft's config.json, or choose another draft"
OTHER = "choose a draft made for this target"
_DOWNLOAD = "download the draft again"


def missing(pair: Pair) -> Finding | None:
    if pair.options.algorithm != "dflash" or pair.maybe_draft is not None:
        return None
    return Finding("draft", "algorithm dflash needs a draft checkpoint", "name one, or use ngram")


def unused(pair: Pair) -> Finding | None:
    if pair.options.algorithm == "dflash" or pair.maybe_draft is None:
        return None
    return Finding("draft", f"algorithm {pair.options.algorithm} uses no draft checkpoint", "use dflash, or drop the draft")


def architecture(pair: Pair) -> Finding | None:
    draft = pair.draft
    if draft.is_dflash2:
        return None
    what = f"{draft.architecture} is not DFlash2DraftModel"
    if draft.architecture == "DFlashDraftModel":
        what = "DFlashDraftModel is a DFlash v1 draft, which has no candidate selector"
    return Finding("draft.architecture", what, "use a DFlash 2 draft")


def quantization(pair: Pair) -> Finding | None:
    draft = pair.draft
    packed = sorted(set(draft.weight_bytes) - FLOAT_DTYPES)
    if draft.quantization is None and not packed:
        return None
    what = f"the draft is quantized ({draft.quantization or ', '.join(packed)})"
    return Finding("draft.quantization", what, "use the draft's BF16 checkpoint")


def is_causal(pair: Pair) -> Finding | None:
    """Absent is refused too: the reference takes sliding layers for causal then, and released drafts say false."""
    value = pair.draft.is_causal
    if value is False:
        return None
    what = "is absent, which means causal on sliding layers" if value is None else "is true: a block must see itself whole"
    return Finding("draft.is_causal", what, "use a draft with is_causal false")


def layer_types(pair: Pair) -> Finding | None:
    kinds, draft, field = pair.draft.layer_types, pair.draft, "draft.layer_types"
    if kinds is None:
        return Finding(field, "is absent, which means full attention", "use a draft of sliding_attention layers")
    if len(kinds) != draft.num_layers:
        return Finding(field, f"names {len(kinds)} layers of {draft.num_layers}", REPAIR)
    if other := sorted(set(kinds) - {SLIDING_ATTENTION}):
        return Finding(field, f"has {', '.join(other)} layers", "use a draft of sliding_attention layers only")
    return None


def sliding_window(pair: Pair) -> Finding | None:
    value = pair.draft.sliding_window
    if value is not None and value >= 2:
        return None
    return Finding("draft.sliding_window", "is absent" if value is None else f"{value} sees no context row", REPAIR)


def rope(pair: Pair) -> Finding | None:
    kind = pair.draft.rope.kind
    if kind == "default":
        return None
    return Finding("draft.rope", f"rope {kind!r} is not applied by the draft forward", "use a draft with default rope")


def rope_partial(pair: Pair) -> Finding | None:
    fraction = pair.draft.rope.rotary_fraction
    if fraction == 1.0:
        return None
    return Finding("draft.rope.partial_rotary_factor", f"{fraction:g} of each head is rotated, not all", OTHER)


def rope_layout(pair: Pair) -> Finding | None:
    if pair.draft.rope.is_neox:
        return None
    return Finding("draft.rope", "rotates interleaved pairs, not the two halves of a head (NeoX)", OTHER)


def output_multiplier(pair: Pair) -> Finding | None:
    return _scale("output_multiplier", pair.draft.output_multiplier)


def input_embedding_scale(pair: Pair) -> Finding | None:
    return _scale("input_embedding_scale", pair.draft.input_embedding_scale)


def final_logit_softcapping(pair: Pair) -> Finding | None:
    value = pair.draft.final_logit_softcapping
    if value is None:
        return None
    return Finding("draft.final_logit_softcapping", f"a soft cap of {value:g} is not applied by the draft forward", OTHER)


def layer_variant(pair: Pair) -> Finding | None:
    draft = pair.draft
    variants = {
        "draft.hidden_act": (draft.hidden_act != "silu", f"activation {draft.hidden_act!r}"),
        "draft.attention_bias": (draft.attention_bias, "attention with biases"),
        "draft.use_gemma_norm": (draft.use_gemma_norm, "offset norms (1 + w)"),
    }
    stated = {field: what for field, (is_stated, what) in variants.items() if is_stated}
    if not stated:
        return None
    what = f"{', '.join(stated.values())}: not applied by the draft forward"
    return Finding(next(iter(stated)) if len(stated) == 1 else "draft.config", what, OTHER)


def selector_rank(pair: Pair) -> Finding | None:
    return _power_of_two("selector_rank", pair.draft.selector_rank)


def selector_top_k(pair: Pair) -> Finding | None:
    value, vocab_size = pair.draft.selector_top_k, pair.draft.vocab_size
    if value is not None and value > vocab_size:
        return Finding("draft.selector_top_k", f"{value} candidates are more than the {vocab_size} tokens there are", REPAIR)
    return _power_of_two("selector_top_k", value)


def head_dim(pair: Pair) -> Finding | None:
    return _power_of_two("head_dim", pair.draft.head_dim)


def num_kv_heads(pair: Pair) -> Finding | None:
    draft = pair.draft
    if draft.num_heads % draft.num_kv_heads == 0:
        return None
    what = f"{draft.num_heads} query heads do not share {draft.num_kv_heads} key heads evenly"
    return Finding("draft.num_kv_heads", what, REPAIR)


def conv_kernel_size(pair: Pair) -> Finding | None:
    value = pair.draft.conv_kernel_size
    if value is not None and value >= 1:
        return None
    return Finding("draft.conv_kernel_size", "is absent" if value is None else f"{value} is not positive", REPAIR)


def conv_group_size(pair: Pair) -> Finding | None:
    value, hidden = pair.draft.conv_group_size, pair.draft.hidden_size
    if value is not None and value >= 1 and hidden % value == 0:
        return None
    what = "is absent" if value is None else f"{value} does not divide the hidden size {hidden}"
    return Finding("draft.conv_group_size", what, REPAIR)


def block_size(pair: Pair) -> Finding | None:
    value = pair.draft.block_size
    if value is not None and 2 <= value <= 64:
        return None
    what = "is absent" if value is None else f"{value} is not between 2 (an anchor and one draft) and 64"
    return Finding("draft.block_size", what, REPAIR)


def target_layer_ids(pair: Pair) -> Finding | None:
    ids, field = pair.draft.target_layer_ids, "draft.target_layer_ids"
    if not ids:
        return Finding(field, "is absent" if ids is None else "is empty", REPAIR)
    if negative := [i for i in ids if i < 0]:
        return Finding(field, f"has the negative layer {negative[0]}", REPAIR)
    if repeated := [i for n, i in enumerate(ids) if i in ids[:n]]:
        return Finding(field, f"names layer {repeated[0]} twice", REPAIR)
    return None


def codebooks(pair: Pair) -> Finding | None:
    lost = [name for name in CODEBOOKS if name not in pair.draft.tensors]
    if not lost:
        return None
    return Finding("draft.tensors", f"the selector's {', '.join(lost)} is missing", _DOWNLOAD)


def tensors(pair: Pair) -> Finding | None:
    """Names and shapes against the config. Own embeddings, heads or mask rows make another kind of draft."""
    differ = differences(pair.draft.tensors, expected_shapes(pair.draft))
    parts = {
        "missing: {}": ([name for name in differ.missing if name not in CODEBOOKS], _DOWNLOAD),
        "no DFlash 2 draft has {}": (sorted(differ.surplus), OTHER),
        "{}": (differ.misshapen, REPAIR),
    }
    told = [(text.format(name_some(names)), remedy) for text, (names, remedy) in parts.items() if names]
    return Finding("draft.tensors", "; ".join(what for what, _ in told), told[0][1]) if told else None


def float16(pair: Pair) -> Finding | None:
    """Residuals of released drafts overflow float16: reported as NaN or no acceptance wherever it was the default."""
    draft = pair.draft
    if draft.dtype != "F16" and draft.config_dtype not in ("float16", "fp16", "half"):
        return None
    return Finding("draft.dtype", "names float16, in which drafts overflow; it runs in bfloat16 all the same", "")


def _scale(name: str, value: float | None) -> Finding | None:
    if value is None or value == 1.0:
        return None
    return Finding(f"draft.{name}", f"a scale of {value:g} is not applied by the draft forward", OTHER)


def _power_of_two(name: str, value: int | None) -> Finding | None:
    if value is not None and is_power_of_two(value):
        return None
    what = "is absent" if value is None else f"{value} is not a power of two, which the kernels need"
    return Finding(f"draft.{name}", what, OTHER)
