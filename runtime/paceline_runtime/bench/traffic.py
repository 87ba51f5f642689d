"""The bytes that a decode step has to move at least once: the numerator of its limit.

Called by `step`. Arithmetic over a shape and what the loaded parts say of themselves; activations are left out, they stay in
the caches. A shared head counts once for the target and once for every pass of a draft through it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
    rows = num_requests * (1 + (proposer.num_steps if proposer else 0))
    distinct = distinct_experts(text.get("num_experts") or 0, text.get("num_experts_per_tok") or 0, rows)
    shape = target.shape
    kv_bytes = 2 * len(shape.attention_layers) * shape.num_kv_heads * shape.head_dim * target.dtype.itemsize
    return StepTraffic(
        weight_bytes=target.memory_bytes() - _unread_bytes(text, target, distinct),
        draft_bytes=_draft_bytes(proposer, target, num_requests, context_tokens) if proposer else 0,
        kv_bytes=num_requests * context_tokens * kv_bytes,
        state_bytes=2 * num_requests * shape.state_bytes_per_slot,
        num_experts=distinct,
    )


def distinct_experts(num_experts: int, num_per_token: int, num_rows: int) -> float:
    """Expected number of different experts that `num_rows` rows choose, each `num_per_token` of them at random."""
    return num_experts * (1.0 - (1.0 - num_per_token / num_experts) ** num_rows) if num_experts else 0.0


def head_bytes(target: TargetModel) -> int:
    """The head, and an embedding of its own, each."""
    return target.shape.vocab_size * target.shape.hidden_size * target.dtype.itemsize


def _unread_bytes(text: dict[str, Any], target: TargetModel, distinct: float) -> int:
    """An embedding of which only some rows are read, and the experts that nobody chose."""
    embedding = 0 if text.get("tie_word_embeddings") else head_bytes(target)
    if not distinct:
        return embedding
    one = 3 * text["hidden_size"] * text["moe_intermediate_size"] * target.dtype.itemsize
    return embedding + int(text["num_hidden_layers"] * (text["num_experts"] - distinct) * one)


def _draft_bytes(proposer: Proposer, target: TargetModel, num_requests: int, context_tokens: int) -> int:
    """DFlash 2: weights without codebooks, the head, the windows. An own head of the model: all of it once per draft."""
    if isinstance(proposer, DFlashProposer):
        weights, rings = proposer.draft.weights, proposer.rings
        codebooks = weights.predecessor.nbytes + weights.successor.nbytes
        window = min(context_tokens, rings.reach) * (rings.keys.nbytes + rings.values.nbytes)
        ring_rows = rings.keys.shape[1] * rings.size
        return weights.memory_bytes() - codebooks + head_bytes(target) + num_requests * window // ring_rows
    if proposer.name == "mtp":
        return proposer.num_steps * (proposer.memory_bytes() + head_bytes(target))
    return 0
