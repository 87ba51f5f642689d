"""The bytes that a decode step has to move at least once: the numerator of its limit.

`step` calls it. It is arithmetic over a shape and what the loaded parts say of themselves; activations are left out, since they
stay in the caches. A shared head counts once for the target and once for every pass of a draft through it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline_compat.memory.buffers import target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime.cache.allocation import dtype_name
from paceline_runtime.models.base import TargetModel
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.speculative.dflash.proposer import DFlashProposer


@dataclass(frozen=True)
class StepTraffic:
    """Bytes of one step; `num_experts` is how many distinct experts a layer is expected to touch (0: no experts)."""

    weight_bytes: int
    draft_bytes: int
    kv_bytes: int
    state_bytes: int
    num_experts: float

    @property
    def total_bytes(self) -> int:
        """Everything that moves."""
        return self.weight_bytes + self.draft_bytes + self.kv_bytes + self.state_bytes

    def to_dict(self) -> dict[str, float]:
        """For the JSON."""
        return {**asdict(self), "total_bytes": self.total_bytes}


def step_traffic(
    text: dict[str, Any], target: TargetModel, proposer: Proposer | None, num_requests: int, context_tokens: int
) -> StepTraffic:
    """Traffic of a step of `num_requests` contexts; `text` is the text part of the target's config."""
    rows = num_requests * (1 + (proposer.num_drafts if proposer else 0))
    distinct = distinct_experts(text.get("num_experts") or 0, text.get("num_experts_per_tok") or 0, rows)
    cache = MemoryLayout(target_buffers(target.facts, dtype_name(target.dtype), 0))
    return StepTraffic(
        weight_bytes=target.memory_bytes() - _unread_embedding_bytes(text, target) - _unread_expert_bytes(text, target, rows),
        draft_bytes=_draft_bytes(text, proposer, target, num_requests, context_tokens) if proposer else 0,
        kv_bytes=num_requests * context_tokens * cache.bytes_per("token"),
        state_bytes=2 * num_requests * cache.bytes_per("slot"),
        num_experts=distinct,
    )


def distinct_experts(num_experts: int, num_per_token: int, num_rows: int) -> float:
    """Expected number of different experts that `num_rows` rows choose, each `num_per_token` of them at random."""
    return num_experts * (1.0 - (1.0 - num_per_token / num_experts) ** num_rows) if num_experts else 0.0


def head_bytes(target: TargetModel) -> int:
    """The head, and an embedding of its own, each."""
    return target.facts.vocab_size * target.facts.hidden_size * target.dtype.itemsize


def _unread_embedding_bytes(text: dict[str, Any], target: TargetModel) -> int:
    """An embedding of its own, of which a step reads a few rows."""
    return 0 if text.get("tie_word_embeddings") else head_bytes(target)


def _unread_expert_bytes(text: dict[str, Any], target: TargetModel, num_rows: int, num_layers: int | None = None) -> int:
    """Experts that none of `num_rows` rows chose, over all layers or `num_layers`."""
    num_experts = text.get("num_experts") or 0
    if not num_experts:
        return 0
    unread = num_experts - distinct_experts(num_experts, text["num_experts_per_tok"], num_rows)
    one = 3 * text["hidden_size"] * text["moe_intermediate_size"] * target.dtype.itemsize
    return int((num_layers or text["num_hidden_layers"]) * unread * one)


def _draft_bytes(text: dict[str, Any], proposer: Proposer, target: TargetModel, num_requests: int, context_tokens: int) -> int:
    """DFlash 2: weights without codebooks, the head, the windows. MTP: its layer and the head, once per draft."""
    if isinstance(proposer, DFlashProposer):
        draft, rings = proposer.draft, proposer.rings
        codebooks = draft.codebooks.predecessor.nbytes + draft.codebooks.successor.nbytes
        window = min(context_tokens, rings.reach) * (rings.keys.nbytes + rings.values.nbytes)
        ring_rows = rings.keys.shape[1] * rings.size
        return draft.memory_bytes() - codebooks + head_bytes(target) + num_requests * window // ring_rows
    if proposer.name == "mtp":
        layer = proposer.memory_bytes() - _unread_expert_bytes(text, target, num_requests, num_layers=1)
        return proposer.num_drafts * (layer + head_bytes(target))
    return 0
