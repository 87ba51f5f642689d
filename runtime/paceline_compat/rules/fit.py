"""Rules about a DFlash 2 draft against its target. They stand in rows of the `table`."""

from __future__ import annotations

from paceline_compat.rules.draft import OTHER, REPAIR
from paceline_compat.rules.pair import Finding, Pair


def target_layer_range(pair: Pair) -> Finding | None:
    ids, num_layers = pair.draft.target_layer_ids or (), pair.target.num_layers
    if max(ids, default=0) < num_layers:
        return None
    return Finding("draft.target_layer_ids", f"reads layer {max(ids)} of a target with {num_layers} layers", OTHER)


def num_target_layers(pair: Pair) -> Finding | None:
    stated, has = pair.draft.num_target_layers, pair.target.num_layers
    if stated is None or stated == has:
        return None
    return Finding("draft.num_target_layers", f"was made for {stated} layers, and the target has {has}", OTHER)


def hidden_size(pair: Pair) -> Finding | None:
    ours, theirs = pair.draft.hidden_size, pair.target.hidden_size
    if ours == theirs:
        return None
    return Finding("draft.hidden_size", f"is {ours}, and the target's is {theirs}", OTHER)


def vocab_size(pair: Pair) -> Finding | None:
    ours, theirs = pair.draft.vocab_size, pair.target.vocab_size
    if ours == theirs:
        return None
    return Finding("draft.vocab_size", f"is {ours}, and the target's is {theirs}", OTHER)


def mask_token_id(pair: Pair) -> Finding | None:
    """The mask is embedded with the target's table, so both vocabularies bound it."""
    value, field = pair.draft.mask_token_id, "draft.mask_token_id"
    limit = min(size for size in (pair.draft.vocab_size, pair.target.vocab_size) if size)
    if value is None:
        return Finding(field, "is absent", REPAIR)
    return None if 0 <= value < limit else Finding(field, f"{value} is outside the vocabulary of {limit}", OTHER)


def max_positions(pair: Pair) -> Finding | None:
    value, longest, field = pair.draft.max_positions, pair.max_model_len, "draft.max_positions"
    if value is None:
        return Finding(field, "is absent", REPAIR)
    if value >= longest:
        return None
    what = f"the draft knows {value} positions, and contexts may reach {longest}"
    return Finding(field, what, f"use --max-model-len {value}")
