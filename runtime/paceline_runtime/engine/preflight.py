"""Reads what target and draft are, and refuses by rules and memory plan what it can, before tens of gigabytes are read.

`build` calls it first of all and builds models from the facts that it returns, so headers and configs are read once. The rules
are the table that `paceline check` and admission use; the arithmetic is `paceline plan`'s.
"""

from __future__ import annotations

import torch

from paceline_compat import DraftFacts, Options, PlanOptions, TargetFacts, inspect_pair, plan, read_draft
from paceline_compat.memory.parts import draft_dtype
from paceline_compat.memory.planner import no_state_slots
from paceline_runtime.cache.allocation import dtype_name
from paceline_runtime.config import EngineConfig
from paceline_runtime.loaders import read_checked


def read_pair(
    config: EngineConfig, dtype: torch.dtype, device: torch.device, budget_bytes: int
) -> tuple[TargetFacts, DraftFacts | None]:
    """Facts of the target and of the draft, if there is one; of a dummy's tensors and memory nothing is known.

    Raises ValueError with everything that is wrong with the pair, or with what is short in `budget_bytes`.
    """
    if config.dummy_weights:
        draft, options = config.speculative_draft_model_path, Options("off", max_model_len=config.max_model_len)
        return read_checked(config.model_path, options, with_tensors=False), read_draft(draft) if draft else None
    options = Options(
        algorithm=config.speculative_algorithm,
        num_drafts=config.speculative_num_steps,
        max_model_len=config.max_model_len,
        cache_type=config.cache_type,
    )
    found = inspect_pair(config.model_path, config.speculative_draft_model_path, options)
    if not found.verdict.fits:
        raise ValueError("\n".join(str(problem) for problem in found.verdict.errors))
    assert found.target is not None, "a verdict that fits read its target"
    if config.num_state_slots is not None and not found.target.num_linear_layers:
        raise ValueError(no_state_slots(found.target.family))
    needed = plan(
        budget_bytes,
        found.target,
        found.draft,
        PlanOptions(
            algorithm=config.speculative_algorithm,
            num_drafts=config.speculative_num_steps,
            dtype=dtype_name(dtype),
            draft_dtype=draft_dtype(dtype_name(dtype), on_gpu=device.type == "cuda"),
            max_running=config.max_running_req,
            max_model_len=config.max_model_len or min(found.target.max_positions, LEAST_CONTEXT),
            max_prefill_tokens=config.max_prefill_tokens,
            num_pages=config.num_pages,
            num_state_slots=config.num_state_slots,
        ),
    )
    if not needed.fits:
        raise ValueError(f"the model does not fit:\n{needed.to_text()}")
    return found.target, found.draft


LEAST_CONTEXT = 4096
"""Without --max-model-len the context is what fits, but a model that cannot hold this much is refused."""
