"""Rules about a target alone: what the runtime serves. Rows of `rules.RULES`."""

from __future__ import annotations

import re

from paceline_compat.facts.families import SERVED_ARCHITECTURES, SERVED_FAMILIES, SERVED_GGML_TYPES, SERVED_GGUF_ARCHITECTURES
from paceline_compat.facts.records import FLOAT_DTYPES, FULL_ATTENTION, LINEAR_ATTENTION, SLIDING_ATTENTION, TargetFacts
from paceline_compat.facts.rope_fields import ROPE_FIELDS, is_positive
from paceline_compat.facts.target_tensors import expected_shapes, is_unread
from paceline_compat.formats.tensors import differences, name_some
from paceline_compat.rules.pair import Finding, Pair

_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "token_embd.weight")
_HEADS = ("lm_head.weight", "output.weight")
_LAYER = re.compile(r"(?:model\.(?:language_model\.)?layers|blk)\.(\d{1,6})\.")


def architecture(pair: Pair) -> Finding | None:
    target, field = pair.target, "target.architecture"
    if target.family in SERVED_FAMILIES:
        return None
    if target.family is not None:
        what = f"{target.architecture} belongs to the family {target.family}, which is known but not served yet"
        return Finding(field, what, f"choose a target of {', '.join(SERVED_FAMILIES)}")
    served = SERVED_GGUF_ARCHITECTURES if target.format == "gguf" else SERVED_ARCHITECTURES
    return Finding(field, f"architecture {target.architecture} is unknown", f"served are {', '.join(served)}")


def gguf_architecture(pair: Pair) -> Finding | None:
    target = pair.target
    if target.format != "gguf" or target.architecture in SERVED_GGUF_ARCHITECTURES:
        return None
    what = f"GGUF files of architecture {target.architecture} are not served yet"
    return Finding("target.architecture", what, "use the safetensors checkpoint of this model")


def split(pair: Pair) -> Finding | None:
    if pair.target.num_splits == 1:
        return None
    what = f"the file is one of {pair.target.num_splits} parts"
    return Finding("target.num_splits", what, "merge the parts into one file with llama.cpp's gguf-split --merge")


def quantization(pair: Pair) -> Finding | None:
    target = pair.target
    if target.format == "gguf" or target.quantization is None:
        return None
    what = f"safetensors weights quantized as {target.quantization} are not served yet"
    return Finding("target.quantization", what, "use the unquantized checkpoint, or a GGUF file")


def tensor_type(pair: Pair) -> Finding | None:
    target = pair.target
    if target.format != "gguf" and target.quantization is not None:
        return None
    served: tuple[str, ...] = SERVED_GGML_TYPES if target.format == "gguf" else tuple(sorted(FLOAT_DTYPES))
    wrong = [t for name, t in target.tensors.items() if t.dtype not in served and not is_unread(target, name)]
    if not wrong:
        return None
    types = ", ".join(sorted({t.dtype for t in wrong}))
    what = f"types {types} are not served: {name_some([t.name for t in wrong])}"
    return Finding("target.tensors", what, f"use a file of {', '.join(served)}")


def rope(pair: Pair) -> Finding | None:
    target, field = pair.target, "target.rope"
    if target.rope.kind not in ROPE_FIELDS:
        what = f"rope {target.rope.kind!r} is not applied here"
        return Finding(field, what, f"served are {', '.join(ROPE_FIELDS)}")
    if problems := [*_rope_field_problems(target), *_rope_width_problems(target)]:
        return Finding(field, f"rope {target.rope.kind!r}: {'; '.join(problems)}", "repair the config")
    return None


def _rope_field_problems(target: TargetFacts) -> list[str]:
    """Fields of the rope's kind: ignored or missing ones would turn every position. GGUF has names of its own."""
    if target.format == "gguf":
        return []
    (required, optional), fields = ROPE_FIELDS[target.rope.kind], target.rope.fields
    missing = [f"{name} is missing" for name in sorted(required - fields.keys())]
    unknown = [f"{name} is not known" for name in sorted(fields.keys() - required - optional)]
    values = {name: fields[name] for name in sorted(fields.keys() & (required | optional))}
    wrong = [
        f"{name} is {repr(value)[:40]}, not a positive number"
        for name, value in values.items()
        if not (is_positive(value) or type(value) is bool or (value is None and name in optional))
    ]
    layout = [] if target.rope.is_neox else ["rotates interleaved pairs, not the two halves of a head (NeoX)"]
    return [*missing, *unknown, *wrong, *layout]


def _rope_width_problems(target: TargetFacts) -> list[str]:
    """Dense models here rotate whole heads, hybrids any part of them."""
    fraction, is_hybrid = target.rope.rotary_fraction, target.gdn is not None
    if not is_hybrid and target.head_dim % 2:
        return [f"head_dim {target.head_dim} is odd, and values are rotated in pairs"]
    is_served = fraction <= 1.0 if is_hybrid else int(target.head_dim * fraction) == target.head_dim
    least = "at most" if is_hybrid else "exactly"
    return [] if is_served else [f"partial_rotary_factor is {fraction:g}, and must be {least} 1"]


def layer_types(pair: Pair) -> Finding | None:
    target, field = pair.target, "target.layer_types"
    if len(target.layer_types) != target.num_layers:
        return Finding(field, f"names {len(target.layer_types)} layers of {target.num_layers}", "repair the config")
    allowed = {FULL_ATTENTION, LINEAR_ATTENTION if target.gdn is not None else FULL_ATTENTION}
    if not (strange := sorted(set(target.layer_types) - allowed)):
        return None
    what, window = f"{', '.join(strange)} layers", target.sliding_window
    if strange != [SLIDING_ATTENTION] or window is None:
        return Finding(field, f"{what} are not served in the family {target.family}", "")
    if pair.max_model_len <= window:  # none of its tokens is ever out of sight
        return None
    what += f" see {window} tokens (sliding_window), and contexts may reach {pair.max_model_len}"
    return Finding(field, f"{what}: the window is not applied here", f"use --max-model-len {window}")


def layer_variant(pair: Pair) -> Finding | None:
    """Scales, soft caps and other activations: ignored, they would change every token."""
    variants = pair.target.variants
    if not variants:
        return None
    stated = ", ".join(f"{name} = {repr(value)[:40]}" for name, value in variants.items())
    return Finding("target.config", f"{stated}: not applied by the {pair.target.family} models here")


def gdn(pair: Pair) -> Finding | None:
    """The kernels keep one square state per value head, and repeat each key head over its value heads."""
    sizes, field = pair.target.gdn, "target.gdn"
    if sizes is None:
        return None
    if sizes.key_head_dim != sizes.value_head_dim:
        what = f"Gated DeltaNet heads of {sizes.key_head_dim} keys and {sizes.value_head_dim} values are not served"
        return Finding(field, what)
    if sizes.num_value_heads % sizes.num_key_heads:
        return Finding(field, f"{sizes.num_value_heads} value heads are no multiple of {sizes.num_key_heads} key heads")
    return None


def tensors(pair: Pair) -> Finding | None:
    """Completeness that a header can show before gigabytes are read."""
    target, field, remedy = pair.target, "target.tensors", "download the checkpoint again"
    embedding = _first(target, _EMBEDDINGS)
    if embedding is None:
        return Finding(field, f"the embedding is missing ({', '.join(_EMBEDDINGS)})", remedy)
    if not target.tie_word_embeddings and _first(target, _HEADS) is None:
        return Finding(field, "the head is missing, and the config does not tie it to the embedding", remedy)
    shape = target.tensors[embedding].shape
    if len(shape) != 2 or shape[0] < target.vocab_size or shape[1] != target.hidden_size:
        wanted = f"at least [{target.vocab_size}, {target.hidden_size}]"
        return Finding(field, f"{embedding} is {list(shape)}, and the config says {wanted}", "repair the config")
    found = {int(match[1]) for name in target.tensors if (match := _LAYER.match(name))}
    if lost := [layer for layer in range(target.num_layers) if layer not in found]:
        return Finding(field, f"no tensor of layers {lost[:8]} is there", remedy)
    problems = _tensor_problems(target) if target.format == "gguf" or target.quantization is None else []
    return Finding(field, "; ".join(problems), "download the checkpoint again, or repair the config") if problems else None


def _tensor_problems(target: TargetFacts) -> list[str]:
    """Names and shapes against the config, where names and layers are those that the family's model asks for."""
    is_named = target.format != "gguf" or target.architecture in SERVED_GGUF_ARCHITECTURES
    if target.family not in SERVED_FAMILIES or not is_named or len(target.layer_types) != target.num_layers:
        return []
    differ = differences(target.tensors, expected_shapes(target))
    surplus = [name for name in differ.surplus if not is_unread(target, name)]
    parts = {"missing: {}": differ.missing, "not of the family: {}": surplus, "{}": differ.misshapen}
    return [text.format(name_some(names)) for text, names in parts.items() if names]


def mtp(pair: Pair) -> Finding | None:
    if pair.options.algorithm != "mtp" or pair.target.num_mtp_layers:
        return None
    return Finding("target.num_mtp_layers", "the checkpoint has no MTP head", "use ngram, or dflash with a draft")


def _first(target: TargetFacts, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in target.tensors), None)
