"""Bytes of every part of a running model, from facts alone. The `planner` and the engine's own plan add them up.

Each function is one part; none knows a budget. `dtype_bytes` is the engine's: weights are loaded in it (GGUF blocks
are dequantized), K/V, context rows and rings are kept in it. Recurrent states and their journal are float32, or wider.
"""

from __future__ import annotations

from paceline_compat.facts.draft_tensors import CODEBOOKS
from paceline_compat.facts.records import DraftFacts, TargetFacts
from paceline_compat.memory.activations import attention_values, delta_values, layer_values, mixture_values, mlp_values

PAGE_TOKENS = 64
"""Also the grid of prefix hits, of chunk ends and of recurrent-state snapshots."""
RING_SPARE_ROWS = 64
"""Rows of a ring beyond its window: a verify's rejected rows, and prefill rows past a snapshot's boundary."""
VERIFY_ROWS_AT_ONCE = 32
"""Rows whose logits are sorted, filtered and penalized at the same time: that takes many copies of them."""
_DRAWING_BYTES = 56
_SEAT_BYTES = 8 * (3 + 4 + 6 + 2 * 1024)
"""Of each seat: its length, replay and state slot, ten sampling parameters, and ids and values of up to 1,024 biases."""
SLOTS_PER_REQUEST = 5
"""The live state, two alternating snapshots while decoding, those before the generation and the prompt's end."""
STATE_BYTES = 4
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


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
    elements = sum(
        t.num_elements
        for name, t in target.tensors.items()
        if target.component_of(name) == component and not target.is_tied_head(name)
    )
    return elements * dtype_bytes


def codebook_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """The selector's two [vocab, rank] tables."""
    return sum(draft.tensors[name].num_elements for name in CODEBOOKS if name in draft.tensors) * dtype_bytes


def draft_weight_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """The draft's weights as loaded, without its codebooks."""
    return draft.num_params * dtype_bytes - codebook_bytes(draft, dtype_bytes)


def kv_bytes_per_token(target: TargetFacts, dtype_bytes: int) -> int:
    """Keys and values of the full-attention layers, the only ones that keep any."""
    return 2 * target.num_full_attention_layers * target.num_kv_heads * target.head_dim * dtype_bytes


def mtp_kv_bytes_per_token(target: TargetFacts, dtype_bytes: int) -> int:
    """Keys and values of the MTP head's own attention layer."""
    return 2 * target.num_mtp_layers * target.num_kv_heads * target.head_dim * dtype_bytes


def mtp_request_bytes(target: TargetFacts, num_steps: int, dtype_bytes: int) -> int:
    """One running request's hidden rows of its last verify, from which MTP goes on, and the position of the first."""
    return (1 + num_steps) * target.hidden_size * dtype_bytes + 8


def context_row_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """One token's row in the pages' further plane, from which rings are rebuilt."""
    return draft.hidden_size * dtype_bytes


def ring_bytes(draft: DraftFacts, dtype_bytes: int) -> int:
    """One running request's draft keys and values: window and spare rows, all layers."""
    rows = (draft.sliding_window or 0) + RING_SPARE_ROWS
    return draft.num_layers * 2 * draft.num_kv_heads * draft.head_dim * rows * dtype_bytes


def recurrent_state_bytes(target: TargetFacts, dtype_bytes: int = STATE_BYTES) -> int:
    """One slot's Gated DeltaNet states."""
    return target.num_linear_layers * target.gdn.state_size * max(dtype_bytes, STATE_BYTES) if target.gdn else 0


def conv_state_bytes(target: TargetFacts, dtype_bytes: int) -> int:
    """One slot's convolution inputs: the kernel's size less one columns, all linear layers."""
    if target.gdn is None:
        return 0
    return target.num_linear_layers * target.gdn.conv_dim * (target.gdn.conv_kernel_size - 1) * dtype_bytes


def slot_bytes(target: TargetFacts, dtype_bytes: int) -> int:
    """One slot of the state pool; every snapshot takes as much as a live state."""
    return recurrent_state_bytes(target, dtype_bytes) + conv_state_bytes(target, dtype_bytes)


def journal_row_bytes(target: TargetFacts, dtype_bytes: int) -> int:
    """What one verified row would add to the states: key, corrected value, decay (as wide as they), convolution input."""
    if target.gdn is None:
        return 0
    sizes = target.gdn
    values = sizes.key_width + sizes.value_width + sizes.num_value_heads
    return target.num_linear_layers * (values * max(dtype_bytes, STATE_BYTES) + sizes.conv_dim * dtype_bytes)


def gathered_bytes(context_tokens: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """One layer's keys and values of a whole context in one piece, as a chunk's attention reads them."""
    return 2 * context_tokens * num_kv_heads * head_dim * dtype_bytes


def logits_bytes(num_rows: int, vocab_size: int, dtype_bytes: int) -> int:
    """Logits of a full verify as computed, in float32 at least and as log probabilities; of a few rows also what drawing takes.

    That is, at its peak: sorted values and ids, p and its sums in float64, and noise (56 bytes measured).
    """
    kept = dtype_bytes + 2 * max(dtype_bytes, 4)
    return vocab_size * (num_rows * kept + min(num_rows, VERIFY_ROWS_AT_ONCE) * _DRAWING_BYTES)


def widest_layer_values(target: TargetFacts) -> int:
    """Values that one row takes while the widest layer computes."""
    hidden, is_hybrid = target.hidden_size, target.gdn is not None
    return layer_values(
        hidden,
        attention_values(target.num_heads, target.num_kv_heads, target.head_dim, gated=is_hybrid),
        delta_values(target.gdn) if target.gdn else 0,
        mixture_values(target.moe, hidden) if target.moe else mlp_values(target.intermediate_size),
    )


def prefill_bytes(target: TargetFacts, draft: DraftFacts | None, chunk_tokens: int, dtype_bytes: int) -> int:
    """Activations of the widest layer for one chunk, and the tapped rows as they are summed up in float32."""
    tapped = draft.hidden_size * STATE_BYTES if draft else 0
    return chunk_tokens * (widest_layer_values(target) * dtype_bytes + tapped)


def history_bytes(max_running: int, max_model_len: int, num_steps: int) -> int:
    """Token ids that penalties and prompt lookup read on the device, int64, a dummy seat included."""
    return (max_running + 1) * (max_model_len + 2 + num_steps) * 8


def page_table_bytes(max_running: int, max_model_len: int) -> int:
    """Page numbers of each seat's context, int64, a dummy seat included."""
    return (max_running + 1) * pages_for(max_model_len) * 8


def seat_bytes(max_running: int, max_model_len: int, num_steps: int) -> int:
    """All that the device keeps of running requests by seat: ids, pages, lengths and how their tokens are chosen."""
    texts = history_bytes(max_running, max_model_len, num_steps) + page_table_bytes(max_running, max_model_len)
    return texts + (max_running + 1) * _SEAT_BYTES
