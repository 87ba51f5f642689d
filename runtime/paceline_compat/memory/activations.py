"""How many values one row of a forward takes while a layer computes. `parts` and the families' shapes use it.

Counted at the peak of each kind of layer, as `paceline_runtime.layers` computes it with bfloat16 on a GPU; a value of float32
counts twice. It knows no budget and no dtype.
"""

from __future__ import annotations

from paceline_compat.facts.records import GdnFacts, MoeFacts

_FLA_CHUNK_ROWS = 64


def attention_values(num_heads: int, num_kv_heads: int, head_dim: int, *, gated: bool) -> int:
    """The projection, which stays, beside q and k in float32 and normed, or in the three pieces of their rotation."""
    queries, keys = num_heads * head_dim, num_kv_heads * head_dim
    return (1 + gated) * queries + 2 * keys + 4 * (queries + keys)


def delta_values(gdn: GdnFacts) -> int:
    """Gated DeltaNet by fla's chunked rule: what goes into it and, when its outputs are written, everything between.

    That is projection and convolution; q and k in one piece, then normed; v in one piece, the two factors of the WY form, the
    corrected v and the output; and for every chunk of 64 rows a state and a 64 x 64 matrix a head.
    """
    keys, values = gdn.key_width, gdn.value_width
    projected = gdn.conv_dim + values + 2 * gdn.num_value_heads
    between = 4 * keys + gdn.num_value_heads * gdn.key_head_dim + 4 * values
    return projected + gdn.conv_dim + between + gdn.state_size // _FLA_CHUNK_ROWS + _FLA_CHUNK_ROWS * gdn.num_value_heads


def mlp_values(intermediate_size: int) -> int:
    """Gate, up, the activated gate and the product."""
    return 4 * intermediate_size


def mixture_values(moe: MoeFacts, hidden_size: int) -> int:
    """A row's copies for its experts, or the shared expert beside their sum."""
    experts = moe.num_experts_per_token * (2 * hidden_size + 3 * moe.intermediate_size)
    return max(experts, hidden_size + mlp_values(moe.shared_intermediate_size))


def layer_values(hidden_size: int, *parts: int) -> int:
    """A layer whose widest part takes the most of `parts`: the residual stream, its norm, the part's output, their sum."""
    return 4 * hidden_size + max(parts)
