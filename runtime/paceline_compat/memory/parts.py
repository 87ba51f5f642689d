"""Bytes of weights, and of what a step takes while it runs, from facts alone. The planner and the engine's plan add them up.

Each function is one part; none knows a budget. `dtype_bytes` is the engine's, in which weights are loaded (GGUF blocks are
dequantized), or the draft's. What is kept from step to step is in `buffers`.
"""

from __future__ import annotations

from paceline_compat.facts.draft_tensors import CODEBOOKS
from paceline_compat.facts.records import DraftFacts, TargetFacts
from paceline_compat.facts.target_tensors import is_unread, is_wide
from paceline_compat.memory.activations import attention_values, delta_values, layer_values, mixture_values, mlp_values

PAGE_TOKENS = 64
"""Also the grid of prefix hits, of chunk ends and of recurrent-state snapshots."""
VERIFY_ROWS_AT_ONCE = 32
"""Rows whose logits are sorted, filtered and penalized at the same time: that takes many copies of them."""
_DRAWING_BYTES = 56
SLOTS_PER_REQUEST = 5
"""The live state, two alternating snapshots while decoding, those before the generation and the prompt's end."""
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_WIDE_BYTES = 4
_GRAPHS_BYTES = 256 << 20
"""An allowance for the graphs' nodes, some 700 a step of a 27B model, and for what they leave."""


def wide_dtype(dtype: str) -> str:
    """The dtype of what 16 bits would spoil: float32, or wider where the engine is."""
    return dtype if DTYPE_BYTES[dtype] > _WIDE_BYTES else "float32"


def draft_dtype(dtype: str, *, on_gpu: bool) -> str:
    """bfloat16 on a GPU and wherever the engine runs float16, in which drafts overflow (vLLM #55250); else the engine's."""
    return "bfloat16" if on_gpu or dtype == "float16" else dtype


def pages_for(num_tokens: int) -> int:
    """Pages that hold `num_tokens`."""
    return -(-num_tokens // PAGE_TOKENS)


def num_state_slots(target: TargetFacts, max_running: int, given: int | None = None) -> int:
    """Slots of the target's state pool; 0 for a target without states."""
    return pool_slots(max_running, given) if target.num_linear_layers else 0


def pool_slots(max_running: int, given: int | None) -> int:
    """Slots of a state pool: slot 0, the dummy of padded rows, beside those given or what each request may hold."""
    return 1 + (SLOTS_PER_REQUEST * max_running if given is None else given)


def target_weight_bytes(target: TargetFacts, dtype_bytes: int, component: str = "text") -> int:
    """Weights of one component as loaded. The vision tower is never loaded, MTP only when it drafts, a tied head never."""
    wide_bytes = max(dtype_bytes, _WIDE_BYTES)
    return sum(
        info.num_elements * (wide_bytes if is_wide(target, name) else dtype_bytes)
        for name, info in target.tensors.items()
        if target.component_of(name) == component and not (component == "text" and is_unread(target, name))
    )


def codebook_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """The selector's two [vocab, rank] tables."""
    return sum(draft.tensors[name].num_elements for name in CODEBOOKS if name in draft.tensors) * dtype_bytes


def draft_weight_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """The draft's weights as loaded, without its codebooks."""
    return draft.num_params * dtype_bytes - codebook_bytes(draft, dtype_bytes)


def gathered_bytes(target: TargetFacts, context_tokens: int, dtype_bytes: int) -> int:
    """One layer's keys and values of a whole context in one piece, as a chunk's attention reads them."""
    return 2 * context_tokens * target.num_kv_heads * target.head_dim * dtype_bytes


def logits_bytes(num_rows: int, vocab_size: int, dtype_bytes: int) -> int:
    """Logits of a full verify as computed, in float32 at least and as log probabilities; of a few rows also what drawing takes.

    That is, at its peak: sorted values and ids, p and its sums in float64, and noise (56 bytes measured).
    """
    kept = dtype_bytes + 2 * max(dtype_bytes, _WIDE_BYTES)
    return vocab_size * (num_rows * kept + min(num_rows, VERIFY_ROWS_AT_ONCE) * _DRAWING_BYTES)


def graph_pool_bytes(target: TargetFacts, num_rows: int, dtype_bytes: int) -> int:
    """The pool that all CUDA graphs share: what the largest decode step takes while it runs, and the graphs themselves."""
    activations = num_rows * widest_layer_values(target) * dtype_bytes
    return logits_bytes(num_rows, target.vocab_size, dtype_bytes) + activations + _GRAPHS_BYTES


def widest_layer_values(target: TargetFacts) -> int:
    """Values that one row takes while the widest layer computes."""
    hidden, is_hybrid = target.hidden_size, target.gdn is not None
    return layer_values(
        hidden,
        attention_values(target.num_heads, target.num_kv_heads, target.head_dim, gated=is_hybrid),
        delta_values(target.gdn) if target.gdn else 0,
        mixture_values(target.moe, hidden) if target.moe else mlp_values(target.intermediate_size),
    )


def prefill_bytes(target: TargetFacts, chunk_tokens: int, tapped_bytes: int, dtype_bytes: int) -> int:
    """Activations of the widest layer for one chunk, and what a draft keeps of each row until all layers are done."""
    return chunk_tokens * (widest_layer_values(target) * dtype_bytes + tapped_bytes)


def tapped_row_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """The tapped layers' part in one row, as it is summed up in float32 at least."""
    return draft.hidden_size * max(dtype_bytes, _WIDE_BYTES)
