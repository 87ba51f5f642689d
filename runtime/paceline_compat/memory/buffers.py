"""Every buffer of a running engine, from facts alone. Declared here, counted by the plan, allocated by the runtime.

An owner asks for its tensor by the name that stands here. `dtype` is the engine's, or the draft's: K/V, context rows and rings
are kept in it. Recurrent states and their journals are float32, or wider.
"""

from __future__ import annotations

from paceline_compat.facts.records import DraftFacts, GdnFacts, TargetFacts
from paceline_compat.memory.layout import Buffer
from paceline_compat.memory.parts import pages_for, wide_dtype

PAGES = "K/V and context pages"
STATES = "recurrent states"
JOURNAL = "journal"
SEATS = "seats"
RINGS = "draft rings"
MTP_ROWS = "MTP hidden rows"

BIASES_PER_SEAT = 1024
"""The most biases that a request may have."""
_RING_SPARE_ROWS = 64
"""Beyond a ring's window: a verify's rejected rows, and prefill rows past a snapshot's boundary."""
_HISTORY_SPARE = 2
"""Beyond the context and a step's drafts, so that no run of tokens has to be cut where it is written."""


def engine_buffers(
    target: TargetFacts, proposer: tuple[Buffer, ...], dtype: str, *, num_drafts: int, max_model_len: int
) -> tuple[Buffer, ...]:
    """All that an engine has: the target's, its proposer's, and those of the seats."""
    return (*target_buffers(target, dtype, num_drafts), *proposer, *seat_buffers(max_model_len, num_drafts))


def target_buffers(target: TargetFacts, dtype: str, num_drafts: int) -> tuple[Buffer, ...]:
    """K/V of the full-attention layers, the only ones that keep any, and the states of the others."""
    heads, layers = (target.num_kv_heads, target.head_dim), (target.num_full_attention_layers,)
    pages = tuple(Buffer(PAGES, name, "token", heads, dtype, layers, divided=0) for name in ("keys", "values"))
    if target.gdn is None or not target.num_linear_layers:
        return pages
    return pages + state_buffers(target.gdn, target.num_linear_layers, dtype, num_drafts)


def state_buffers(gdn: GdnFacts, num_layers: int, dtype: str, num_drafts: int) -> tuple[Buffer, ...]:
    """By slot a state: the recurrence, and the columns that the convolution has yet to see. By seat a journal.

    A journal holds what each row of a verify would add to the state: key, corrected value, decay and convolution input.
    """
    wide, layers, rows = wide_dtype(dtype), (num_layers,), 1 + num_drafts
    heads, keys = gdn.num_value_heads, (rows, gdn.num_key_heads, gdn.key_head_dim)
    state, columns = (heads, gdn.key_head_dim, gdn.value_head_dim), (gdn.conv_kernel_size - 1, gdn.conv_dim)
    return (
        Buffer(STATES, "recurrent_states", "slot", state, wide, layers, divided=0),
        Buffer(STATES, "conv_states", "slot", columns, dtype, layers, divided=1),
        Buffer(JOURNAL, "journal_keys", "seat", keys, wide, layers, divided=1),
        Buffer(JOURNAL, "journal_values", "seat", (rows, heads, gdn.value_head_dim), wide, layers, divided=1),
        Buffer(JOURNAL, "journal_decays", "seat", (rows, heads), wide, layers, divided=1),
        Buffer(JOURNAL, "journal_conv", "seat", (rows, gdn.conv_dim), dtype, layers, divided=1),
    )


def seat_buffers(max_model_len: int, num_drafts: int) -> tuple[Buffer, ...]:
    """What every running request has: its ids and pages, where it stands, and how its tokens are chosen."""
    ids = max_model_len + num_drafts + _HISTORY_SPARE
    return (
        Buffer(SEATS, "history", "seat", (ids,), "int64"),
        Buffer(SEATS, "page_table", "seat", (pages_for(max_model_len),), "int64"),
        *(Buffer(SEATS, name, "seat", (), "int64") for name in ("lengths", "replay", "state_slots")),
        Buffer(SEATS, "int_params", "seat", (), "int64", (4,)),
        Buffer(SEATS, "float_params", "seat", (), "float64", (6,)),
        Buffer(SEATS, "bias_ids", "seat", (BIASES_PER_SEAT,), "int64"),
        Buffer(SEATS, "bias_values", "seat", (BIASES_PER_SEAT,), "float64"),
    )


def dflash_buffers(draft: DraftFacts, dtype: str) -> tuple[Buffer, ...]:
    """A context row for each token, from which rings are rebuilt, and by seat a ring of the draft's own keys and values."""
    rows, layers = (draft.sliding_window or 0) + _RING_SPARE_ROWS, (draft.num_layers,)
    ring = (rows, draft.num_kv_heads, draft.head_dim)
    return (
        Buffer(PAGES, "dflash_context", "token", (draft.hidden_size,), dtype),
        Buffer(RINGS, "dflash_ring_keys", "seat", ring, dtype, layers, divided=1),
        Buffer(RINGS, "dflash_ring_values", "seat", ring, dtype, layers, divided=1),
    )


def mtp_buffers(target: TargetFacts, dtype: str, num_drafts: int) -> tuple[Buffer, ...]:
    """The K/V of the head's one layer, and the hidden rows that it goes on from.

    Those are the one at each page's end, for a hit, and by seat all of the last verify, with the position of the first.
    """
    heads, hidden = (target.num_kv_heads, target.head_dim), target.hidden_size
    return (
        Buffer(PAGES, "mtp_keys", "token", heads, dtype, divided=0),
        Buffer(PAGES, "mtp_values", "token", heads, dtype, divided=0),
        Buffer(PAGES, "mtp_page_ends", "page", (hidden,), dtype),
        Buffer(MTP_ROWS, "mtp_hidden", "seat", (1 + num_drafts, hidden), dtype),
        Buffer(MTP_ROWS, "mtp_first", "seat", (), "int64"),
    )
