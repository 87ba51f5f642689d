"""Names and shapes of a DFlash 2 draft's tensors, for the rules, the memory plan, the loader and `draft init`.

Source: the `dflash` package, 0.1.0. Checkpoints in the field differ in two ways that `canonical_name` takes back:
a `model.` prefix, and a `.weight` after the codebooks.
"""

from __future__ import annotations

from paceline_compat.facts.records import DraftFacts

CODEBOOKS = ("candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook")


def canonical_name(name: str) -> str:
    """The name used here for a tensor as a checkpoint spells it."""
    name = name.removeprefix("model.")
    return name.removesuffix(".weight") if name.removesuffix(".weight") in CODEBOOKS else name


def expected_shapes(draft: DraftFacts) -> dict[str, tuple[int, ...]]:
    """Every tensor of a draft with these sizes. Absent sizes count as 0: ask the rules before trusting the result."""
    hidden, rank = draft.hidden_size, draft.selector_rank or 0
    num_taps = len(draft.target_layer_ids or ())
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, num_taps * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
    }
    shapes |= dict.fromkeys(CODEBOOKS, (draft.vocab_size, rank))
    for layer in range(draft.num_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(draft).items()}
    return shapes


def _layer_shapes(draft: DraftFacts) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = draft.hidden_size, draft.intermediate_size, draft.head_dim
    q_rows, kv_rows = draft.num_heads * dim, draft.num_kv_heads * dim
    taps = draft.conv_kernel_size or 0
    groups = hidden // (draft.conv_group_size or hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_rows, hidden),
        "self_attn.k_proj.weight": (kv_rows, hidden),
        "self_attn.v_proj.weight": (kv_rows, hidden),
        "self_attn.o_proj.weight": (hidden, q_rows),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    for conv in ("attention_conv", "mlp_conv"):
        shapes[f"{conv}.base_kernel"] = (2, taps, hidden)
        shapes[f"{conv}.kernel_projection.weight"] = (2 * taps * groups, hidden)
    return shapes
