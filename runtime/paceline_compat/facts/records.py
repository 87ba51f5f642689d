"""What is known about a checkpoint from its headers. Values only: `checkpoint` reads them, `rules` judges them.

Numbers are kept as the file states them, wrong ones too (a tap of -1, a block of 0): the rules say what is wrong with
them, all at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from paceline_compat.formats.tensors import TensorInfo

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"
SLIDING_ATTENTION = "sliding_attention"
DFLASH2_ARCHITECTURE = "DFlash2DraftModel"

FLOAT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_VISION = re.compile(r"(model\.)?(visual|vision_tower|vision_model|multi_modal_projector)\.")


@dataclass(frozen=True, slots=True)
class RopeFacts:
    """Rotary embedding: `kind` as the config names it, `rotary_fraction` of head_dim that is rotated.

    `is_neox` is true when a pair is (i, i + dim/2), the layout of every supported draft; false when it is (2i, 2i+1).
    `fields` are those of the kind, those that follow from others included. A GGUF has `divisors` of the frequencies, one
    for each pair, where a config has the fields of llama 3.
    """

    kind: str = "default"
    theta: float = 10_000.0
    rotary_fraction: float = 1.0
    is_neox: bool = True
    fields: Mapping[str, Any] = field(default_factory=dict)
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GdnFacts:
    """Gated DeltaNet sizes of one layer. The convolution runs over q, k and v together."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel_size: int

    @property
    def key_width(self) -> int:
        """Values of all key heads."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Values of all value heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def state_size(self) -> int:
        """Values of one layer's recurrent state."""
        return self.value_width * self.key_head_dim


@dataclass(frozen=True, slots=True)
class MoeFacts:
    """Mixture-of-experts sizes of one layer."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int


@dataclass(frozen=True)
class TargetFacts:
    """A target checkpoint. `family` is None for an architecture nobody here knows.

    `vocab_size` is the config's; `head_rows` counts the rows that embedding and head are stored with, padding included.
    `prefix` begins the names of the text part's tensors. `sliding_window` counts the query's own position, and is None
    where no layer has one. `variants` holds the config's fields that make another decoder of it (a scale, a soft cap), at
    values that do. `tensors` carry the names of safetensors checkpoints where the family's GGUF form is served.
    """

    name: str
    format: str
    architecture: str
    family: str | None
    num_layers: int
    layer_types: tuple[str, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    head_rows: int
    max_positions: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    rope: RopeFacts
    gdn: GdnFacts | None
    moe: MoeFacts | None
    num_mtp_layers: int
    eos_token_ids: tuple[int, ...]
    quantization: str | None
    dtype: str
    sliding_window: int | None = None
    has_head_norms: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    prefix: str = "model"
    is_multimodal: bool = False
    num_splits: int = 1
    variants: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)

    @property
    def num_full_attention_layers(self) -> int:
        """Layers that own K/V pages."""
        return sum(kind != LINEAR_ATTENTION for kind in self.layer_types)

    @property
    def num_linear_layers(self) -> int:
        """Layers that own a recurrent state."""
        return sum(kind == LINEAR_ATTENTION for kind in self.layer_types)

    def component_of(self, tensor: str) -> str:
        """Which part a tensor belongs to: `text`, `mtp` (the model's own draft head) or `vision` (not loaded)."""
        if _VISION.match(tensor):
            return "vision"
        block = re.match(r"blk\.(\d{1,6})\.", tensor) if self.format == "gguf" else None
        is_mtp = int(block[1]) >= self.num_layers if block else tensor.startswith(("mtp.", "model.mtp."))
        return "mtp" if is_mtp else "text"

    def is_tied_head(self, tensor: str) -> bool:
        """Whether a stored head is never read, since the config ties it to the embedding."""
        return self.tie_word_embeddings and tensor.startswith("lm_head.")

    def weight_bytes(self, component: str = "text") -> dict[str, int]:
        """Stored bytes of one component by dtype."""
        return _bytes_by_dtype({n: t for n, t in self.tensors.items() if self.component_of(n) == component})

    @property
    def num_params(self) -> int:
        """Values in all tensors, vision and MTP included."""
        return sum(t.num_elements for t in self.tensors.values())


@dataclass(frozen=True)
class DraftFacts:
    """A draft checkpoint. A field that the config does not state is None, never a guess: the rules ask for it.

    `tensors` carry canonical names: without a `model.` prefix, codebooks without `.weight`.
    """

    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int | None
    rms_norm_eps: float
    rope: RopeFacts
    layer_types: tuple[str, ...] | None
    sliding_window: int | None
    is_causal: bool | None
    block_size: int | None
    mask_token_id: int | None
    target_layer_ids: tuple[int, ...] | None
    num_target_layers: int | None
    conv_kernel_size: int | None
    conv_group_size: int | None
    selector_rank: int | None
    selector_top_k: int | None
    output_multiplier: float | None
    input_embedding_scale: float | None
    final_logit_softcapping: float | None
    hidden_act: str
    attention_bias: bool
    use_gemma_norm: bool
    quantization: str | None
    config_dtype: str | None
    dtype: str
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)

    @property
    def is_dflash2(self) -> bool:
        return self.architecture == DFLASH2_ARCHITECTURE

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Stored bytes by dtype."""
        return _bytes_by_dtype(self.tensors)

    @property
    def num_params(self) -> int:
        return sum(t.num_elements for t in self.tensors.values())


@dataclass(frozen=True)
class WholeDraft(DraftFacts):
    """A draft in which no rule found an absent field: what the draft model is built from.

    `block_size` counts the anchor, so `block_size` - 1 tokens can be drafted; `target_layer_ids` are zero-based and mean
    the outputs of those target layers; `sliding_window` counts the query's own position.
    """

    sliding_window: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @classmethod
    def of(cls, facts: DraftFacts) -> WholeDraft:
        """The same facts, of a draft that the rules let pass."""
        stated = {field.name: getattr(facts, field.name) for field in fields(facts)}
        absent = [name for name in cls.__annotations__ if stated[name] is None]
        assert not absent, f"the rules refuse a draft whose config leaves out {absent}"
        return cls(**stated)

    @property
    def num_conv_groups(self) -> int:
        """Groups of channels that share a dynamic kernel."""
        return self.hidden_size // self.conv_group_size


def main_dtype(tensors: Mapping[str, TensorInfo]) -> str:
    """The dtype that holds most bytes; empty for a checkpoint without tensors."""
    by_dtype = _bytes_by_dtype(tensors)
    return max(by_dtype, key=lambda dtype: (by_dtype[dtype], dtype), default="")


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def num_elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Values in tensors of the given shapes."""
    return sum(math.prod(shape) for shape in shapes.values())


def _bytes_by_dtype(tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for tensor in tensors.values():
        total[tensor.dtype] += tensor.num_bytes
    return dict(total)
