"""Rules about the serving options. They stand in rows of the `table`."""

from __future__ import annotations

from paceline_compat.rules.pair import ALGORITHMS, CACHE_TYPES, MAX_NUM_DRAFTS, Finding, Pair


def algorithm(pair: Pair) -> Finding | None:
    value = pair.options.algorithm
    if value in ALGORITHMS:
        return None
    return Finding("options.algorithm", f"{value!r} is no speculative algorithm", f"choose one of {', '.join(ALGORITHMS)}")


def tensor_parallel(pair: Pair) -> Finding | None:
    value = pair.options.tensor_parallel
    if value == 1:
        return None
    return Finding("options.tensor_parallel", f"{value} GPUs for one model are not served yet", "use 1 and more replicas")


def cache_type(pair: Pair) -> Finding | None:
    value = pair.options.cache_type
    if value in CACHE_TYPES:
        return None
    return Finding("options.cache_type", f"{value!r} is no cache type", f"choose one of {', '.join(CACHE_TYPES)}")


def max_model_len(pair: Pair) -> Finding | None:
    value, limit = pair.options.max_model_len, pair.target.max_positions
    if value is None or 2 <= value <= limit:  # a token of a prompt and one of its answer
        return None
    remedy = f"use {'at least 2' if value < 2 else f'at most {limit}'}"
    return Finding("options.max_model_len", f"{value} is not between 2 and the target's {limit}", remedy)


def num_drafts(pair: Pair) -> Finding | None:
    """k against the draft's block: a block of 8 holds the anchor and at most 7 drafted tokens."""
    value, field = pair.options.num_drafts, "options.num_steps"
    if value is None or pair.options.algorithm not in ALGORITHMS:
        return None
    if pair.options.algorithm == "off":
        return Finding(field, f"{value} steps cannot run with algorithm off", "drop it") if value != 0 else None
    limit = MAX_NUM_DRAFTS[pair.options.algorithm]
    if pair.options.algorithm == "dflash" and pair.maybe_draft is not None and pair.maybe_draft.block_size:
        limit = pair.maybe_draft.block_size - 1
    if 1 <= value <= limit:
        return None
    return Finding(field, f"{value} is not between 1 and {limit}", f"use at most {limit}")
