"""The numbers a DFlash 2 draft's forward needs, taken from the facts that `paceline_compat` reads.

Called by the loader and by `paceline draft init`. It parses nothing and judges nothing: `dflash_config` before the top level
is the reader's business, and what a draft must not be is the table of rules'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from paceline_compat.facts import DraftFacts

T = TypeVar("T")


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of a draft that the rules let pass.

    `block_size` counts the anchor, so `block_size` - 1 tokens can be drafted; `target_layer_ids` are zero-based and mean the
    outputs of those target layers; `sliding_window` counts the query's own position.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    sliding_window: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @property
    def num_conv_groups(self) -> int:
        """Groups of channels that share a dynamic kernel."""
        return self.hidden_size // self.conv_group_size

    @classmethod
    def from_facts(cls, facts: DraftFacts) -> DraftConfig:
        """The config of a draft in which no rule found an absent field."""
        return cls(
            num_layers=facts.num_layers,
            hidden_size=facts.hidden_size,
            intermediate_size=facts.intermediate_size,
            num_heads=facts.num_heads,
            num_kv_heads=facts.num_kv_heads,
            head_dim=facts.head_dim,
            vocab_size=facts.vocab_size,
            rms_norm_eps=facts.rms_norm_eps,
            rope_theta=facts.rope.theta,
            sliding_window=_stated(facts.sliding_window),
            block_size=_stated(facts.block_size),
            target_layer_ids=_stated(facts.target_layer_ids),
            mask_token_id=_stated(facts.mask_token_id),
            conv_kernel_size=_stated(facts.conv_kernel_size),
            conv_group_size=_stated(facts.conv_group_size),
            selector_rank=_stated(facts.selector_rank),
            selector_top_k=_stated(facts.selector_top_k),
        )


def _stated(value: T | None) -> T:
    assert value is not None, "the rules refuse a draft whose config leaves this field out"
    return value
