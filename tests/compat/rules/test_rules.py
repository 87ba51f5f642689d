"""The table of compatibility: each row broken alone, with its message; the released pairs pass."""

import dataclasses
import json

import pytest
from released_pairs import (
    QWEN_FLASH_NEXT,
    RELEASED_PAIRS,
    TINY_DRAFT_CONFIG,
    TINY_HYBRID_CONFIG,
    TINY_TARGET_CONFIG,
    draft_shapes,
    released_draft,
    released_target,
    reshaped_draft,
    table,
    target_shapes,
    tiny_draft,
    tiny_target,
)

from paceline_compat import RULES, Options, check, target_facts
from paceline_compat.facts.records import TargetFacts

OFF, NGRAM = Options(algorithm="off"), Options(algorithm="ngram")
DRAFT_SHAPES = draft_shapes(TINY_DRAFT_CONFIG)
TARGET_SHAPES = target_shapes(TINY_TARGET_CONFIG)


def without(*names: str) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in DRAFT_SHAPES.items() if name not in names}


def gguf_target(architecture: str = "llama", dtype: str = "F32") -> TargetFacts:
    """A tiny llama as it looks when it came from a GGUF file."""
    shapes = {
        n: s for n, s in TARGET_SHAPES.items() if not n.endswith(("q_norm.weight", "k_norm.weight")) and "lm_head" not in n
    }
    tensors = {n: dataclasses.replace(t, dtype=dtype) for n, t in table(shapes, "F32").items()}
    llama = tiny_target(TINY_TARGET_CONFIG | {"architectures": ["LlamaForCausalLM"]})
    return dataclasses.replace(llama, format="gguf", architecture=architecture, tie_word_embeddings=True, tensors=tensors)


def target_with(shapes: dict[str, tuple[int, ...]], dtype: str = "BF16") -> TargetFacts:
    return target_facts("tiny", TINY_TARGET_CONFIG, table(shapes, dtype))


def with_gdn(**sizes: int) -> TargetFacts:
    config = TINY_HYBRID_CONFIG | sizes
    return target_facts("tiny", config, table(target_shapes(config)))


# rule id -> (target, draft, options, a part of the message)
BROKEN = {
    "options.algorithm": (tiny_target(), None, Options(algorithm="eagle"), "'eagle' is no speculative algorithm"),
    "options.tensor_parallel": (tiny_target(), tiny_draft(), Options(tensor_parallel=2), "2 GPUs"),
    "options.cache_type": (tiny_target(), tiny_draft(), Options(cache_type="radix"), "'radix' is no cache type"),
    "options.max_model_len": (tiny_target(), None, Options("off", max_model_len=513), "between 2 and the target's 512"),
    "options.num_steps": (tiny_target(), tiny_draft(), Options(num_drafts=8), "8 is not between 1 and 7"),
    "target.architecture": (tiny_target(architectures=["GPT2LMHeadModel"]), None, OFF, "GPT2LMHeadModel is unknown"),
    "target.gguf_architecture": (gguf_target("qwen35"), None, OFF, "GGUF files of architecture qwen35"),
    "target.split": (dataclasses.replace(gguf_target(), num_splits=3), None, OFF, "one of 3 parts"),
    "target.quantization": (
        tiny_target(quantization_config={"quant_method": "fp8"}), None, OFF, "quantized as fp8 are not served"),
    "target.tensor_type": (gguf_target(dtype="IQ2_XS"), None, OFF, "types IQ2_XS are not served: model.embed_tokens.weight"),
    "target.rope": (tiny_target(rope_scaling={"rope_type": "longrope"}), None, OFF, "rope 'longrope'"),
    "target.layer_types": (
        tiny_target(layer_types=["full_attention"] * 3 + ["sliding_attention"]), None, OFF, "sliding_attention layers"),
    "target.layer_variant": (
        tiny_target(final_logit_softcapping=30.0, hidden_act="gelu"), None, OFF, "hidden_act = 'gelu', final_logit"),
    "target.gdn": (with_gdn(linear_value_head_dim=32), None, OFF, "heads of 16 keys and 32 values"),
    "target.tensors": (
        target_with({n: s for n, s in TARGET_SHAPES.items() if ".layers.2." not in n}), None, OFF, "layers [2]"),
    "target.mtp": (tiny_target(), None, Options(algorithm="mtp"), "no MTP head"),
    "draft.missing": (tiny_target(), None, Options(), "needs a draft checkpoint"),
    "draft.unused": (tiny_target(), tiny_draft(), NGRAM, "algorithm ngram uses no draft"),
    "draft.architecture": (
        tiny_target(), tiny_draft(architectures=["DFlashDraftModel"]), Options(), "is a DFlash v1 draft"),
    "draft.quantization": (
        tiny_target(), tiny_draft(quantization_config={"quant_method": "gptq"}), Options(), "quantized (gptq)"),
    "draft.is_causal": (tiny_target(), tiny_draft(is_causal=True), Options(), "is true"),
    "draft.layer_types": (
        tiny_target(), tiny_draft(layer_types=["sliding_attention", "full_attention"]), Options(), "full_attention"),
    "draft.sliding_window": (tiny_target(), tiny_draft(sliding_window=None), Options(), "is absent"),
    "draft.rope": (
        tiny_target(), tiny_draft(rope_scaling={"rope_type": "yarn", "factor": 4.0}), Options(), "rope 'yarn'"),
    "draft.rope_partial": (tiny_target(), tiny_draft(partial_rotary_factor=0.5), Options(), "0.5 of each head"),
    "draft.rope_layout": (tiny_target(), tiny_draft(rope_interleaved=True), Options(), "interleaved pairs"),
    "draft.output_multiplier": (tiny_target(), tiny_draft(output_multiplier=0.5), Options(), "a scale of 0.5"),
    "draft.input_embedding_scale": (tiny_target(), tiny_draft(input_embedding_scale=8), Options(), "a scale of 8"),
    "draft.final_logit_softcapping": (
        tiny_target(), tiny_draft(final_logit_softcapping=30.0), Options(), "soft cap of 30"),
    "draft.layer_variant": (tiny_target(), tiny_draft(hidden_act="gelu"), Options(), "activation 'gelu'"),
    "draft.selector_rank": (
        tiny_target(), reshaped_draft(selector_rank=12), Options(), "12 is not a power of two"),
    "draft.selector_top_k": (tiny_target(), tiny_draft(selector_top_k=10), Options(), "10 is not a power of two"),
    "draft.head_dim": (
        tiny_target(), reshaped_draft(head_dim=24), Options(),
        "24 is not a power of two"),
    "draft.num_kv_heads": (
        tiny_target(), reshaped_draft(num_key_value_heads=3),
        Options(), "4 query heads do not share 3"),
    "draft.conv_kernel_size": (
        tiny_target(), reshaped_draft(conv_kernel_size=0), Options(), "0 is not positive"),
    "draft.conv_group_size": (
        tiny_target(), reshaped_draft(conv_group_size=20), Options(), "20 does not divide"),
    "draft.block_size": (tiny_target(), tiny_draft(block_size=1), Options(), "1 is not between 2"),
    "draft.target_layer_ids": (tiny_target(), tiny_draft(target_layer_ids=[2, 2]), Options(), "names layer 2 twice"),
    "draft.target_layer_range": (tiny_target(), tiny_draft(target_layer_ids=[1, 4]), Options(), "reads layer 4"),
    "draft.num_target_layers": (tiny_target(), tiny_draft(num_target_layers=5), Options(), "made for 5 layers"),
    "draft.hidden_size": (
        tiny_target(), reshaped_draft(hidden_size=32), Options(),
        "is 32, and the target's is 64"),
    "draft.vocab_size": (
        tiny_target(), reshaped_draft(vocab_size=128), Options(),
        "is 128, and the target's is 96"),
    "draft.mask_token_id": (tiny_target(), tiny_draft(mask_token_id=96), Options(), "96 is outside the vocabulary"),
    "draft.max_positions": (
        tiny_target(), tiny_draft(max_position_embeddings=256), Options(), "knows 256 positions, and contexts may reach"),
    "draft.codebooks": (
        tiny_target(), tiny_draft(without("candidate_selector.successor_codebook")), Options(), "successor_codebook"),
    "draft.tensors": (
        tiny_target(), tiny_draft(DRAFT_SHAPES | {"fc.weight": (64, 192)}), Options(),
        "fc.weight is [64, 192], and the config says [64, 128]"),
    "draft.float16": (tiny_target(), tiny_draft(torch_dtype="float16"), Options(), "float16"),
}  # fmt: skip


def test_every_rule_has_a_breaker_and_a_unique_id():
    assert [rule.id for rule in RULES] == list(dict.fromkeys(rule.id for rule in RULES))
    assert set(BROKEN) == {rule.id for rule in RULES}


@pytest.mark.parametrize("rule_id", BROKEN)
def test_a_rule_is_broken_alone_and_says_so(rule_id):
    target, draft, options, message = BROKEN[rule_id]
    verdict = check(target, draft, options)
    assert [problem.rule for problem in verdict.problems] == [rule_id]
    problem = verdict.problems[0]
    assert message in problem.message
    assert problem.field.split(".")[0] in ("target", "draft", "options")
    assert problem.reason.isalnum()
    assert problem.reason[0].isupper()
    assert verdict.fits is problem.is_warning


# the further ways a rule can be broken, beside the one above
ALSO_BROKEN = [
    ("draft.architecture", tiny_draft(architectures=["LlamaForCausalLM"]), "LlamaForCausalLM is not DFlash2DraftModel"),
    ("draft.architecture", tiny_draft(architectures=None), "[] is not DFlash2DraftModel"),
    ("draft.quantization", tiny_draft(dtype="U8"), "quantized (U8)"),
    ("draft.is_causal", tiny_draft(is_causal=None), "is absent, which means causal"),
    ("draft.layer_types", tiny_draft(layer_types=None), "is absent, which means full attention"),
    ("draft.layer_types", tiny_draft(layer_types=["sliding_attention"]), "names 1 layers of 2"),
    ("draft.sliding_window", tiny_draft(sliding_window=1), "1 sees no context row"),
    ("draft.rope", tiny_draft(rope_parameters={"rope_type": "llama3", "rope_theta": 1.0}), "rope 'llama3'"),
    ("draft.rope", tiny_draft(rope_scaling={"type": "linear", "factor": 2.0}), "rope 'linear'"),
    (
        "draft.rope",
        tiny_draft(rope_parameters={"rope_type": "default"}, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        "rope 'yarn'",
    ),
    ("draft.rope_partial", tiny_draft(rope_parameters={"rope_theta": 1.0, "partial_rotary_factor": 0.25}), "0.25 of"),
    ("draft.rope_layout", tiny_draft(is_neox_style=False), "interleaved"),
    ("draft.layer_variant", tiny_draft(attention_bias=True), "biases"),
    ("draft.layer_variant", tiny_draft(use_gemma_norm=True), "offset norms"),
    ("draft.selector_top_k", tiny_draft(selector_top_k=None), "is absent"),
    ("draft.selector_top_k", tiny_draft(selector_top_k=-4), "-4 is not a power of two"),
    ("draft.selector_top_k", tiny_draft(selector_top_k=128), "128 candidates are more than the 96 tokens"),
    ("draft.layer_variant", tiny_draft(attention_bias=True, hidden_act="gelu"), "activation 'gelu', attention with biases"),
    (
        "draft.tensors",
        tiny_draft(without("norm.weight") | {"mask.weight": (1,), "fc.weight": (1, 1), "hidden_norm.weight": (1,)}),
        "missing: norm.weight; no DFlash 2 draft has mask.weight; fc.weight is [1, 1], and the config says [64, 128], hidden",
    ),
    ("draft.block_size", tiny_draft(block_size=None), "is absent"),
    ("draft.block_size", tiny_draft(block_size=-8), "-8 is not between"),
    ("draft.target_layer_ids", tiny_draft(target_layer_ids=[-1, 2]), "negative layer -1"),
    ("draft.mask_token_id", tiny_draft(mask_token_id=None), "is absent"),
    ("draft.mask_token_id", tiny_draft(mask_token_id=-1), "-1 is outside the vocabulary"),
    ("draft.max_positions", tiny_draft(max_position_embeddings=None), "is absent"),
    ("draft.tensors", tiny_draft(without("norm.weight")), "missing: norm.weight"),
    ("draft.tensors", tiny_draft(DRAFT_SHAPES | {"lm_head.weight": (96, 64)}), "no DFlash 2 draft has lm_head.weight"),
    ("draft.float16", tiny_draft(dtype="F16"), "float16"),
]


@pytest.mark.parametrize("rule_id, draft, message", ALSO_BROKEN)
def test_a_rule_has_further_ways_to_be_broken(rule_id, draft, message):
    verdict = check(tiny_target(), draft)
    assert [problem.rule for problem in verdict.problems] == [rule_id]
    assert message in verdict.problems[0].message


@pytest.mark.parametrize("ids", [[], None])
def test_a_draft_that_taps_nothing_is_refused(ids):
    draft = tiny_draft(target_layer_ids=ids)
    assert "draft.target_layer_ids" in {problem.rule for problem in check(tiny_target(), draft).problems}


ALSO_BROKEN_TARGETS = [
    ("target.tensors", target_with({n: s for n, s in TARGET_SHAPES.items() if "embed" not in n}), "embedding is missing"),
    ("target.tensors", target_with({n: s for n, s in TARGET_SHAPES.items() if n != "lm_head.weight"}), "head is missing"),
    ("target.tensors", target_with(TARGET_SHAPES | {"model.embed_tokens.weight": (95, 64)}), "is [95, 64]"),
    (
        "target.tensors",
        target_with({n: s for n, s in TARGET_SHAPES.items() if "layers.2.mlp.up" not in n}),
        "missing: model.layers.2.mlp.up_proj.weight",
    ),
    (
        "target.tensors",
        target_with(TARGET_SHAPES | {"model.layers.1.extra": (3,), "model.norm.weight": (65,)}),
        "not of the family: model.layers.1.extra; model.norm.weight is [65], and the config says [64]",
    ),
    ("target.tensors", tiny_target(intermediate_size=1 << 39), "model.layers.0.mlp.gate_proj.weight is [128, 64]"),
    (
        "target.layer_types",
        tiny_target(use_sliding_window=True, max_window_layers=2, sliding_window=256),
        "sliding_attention layers see 256 tokens (sliding_window), and contexts may reach 512: the window is not applied here",
    ),
    ("target.layer_types", tiny_target(layer_types=["full_attention"]), "names 1 layers of 4"),
    ("target.layer_types", tiny_target(layer_types=["linear_attention"] * 4), "linear_attention layers"),
    ("target.gdn", with_gdn(linear_num_value_heads=3), "3 value heads are no multiple of 2"),
    ("target.quantization", target_with(TARGET_SHAPES, "F8_E4M3"), "quantized as F8_E4M3"),
    ("target.rope", tiny_target(TINY_HYBRID_CONFIG, rope_scaling={"rope_type": "longrope"}), "rope 'longrope'"),
    ("target.rope", tiny_target(rope_scaling={"rope_type": "linear"}), "'linear': factor is missing"),
    ("target.rope", tiny_target(rope_scaling={"rope_type": "linear", "factor": None}), "factor is None, not a positive"),
    (
        "target.rope",
        tiny_target(partial_rotary_factor=0.5, rope_scaling={"rope_type": "yarn", "factor": -2, "mood": 1}),
        "mood is not known; factor is -2, not a positive number; partial_rotary_factor is 0.5, and must be exactly 1",
    ),
    ("target.rope", tiny_target(TINY_HYBRID_CONFIG, partial_rotary_factor=3.0), "must be at most 1"),
    ("target.architecture", tiny_target(architectures=["Qwen3ForCausalLM", "Other"]), "[Qwen3ForCausalLM, Other]"),
]


@pytest.mark.parametrize("rule_id, target, message", ALSO_BROKEN_TARGETS)
def test_a_target_rule_has_further_ways_to_be_broken(rule_id, target, message):
    verdict = check(target, None, OFF)
    assert [problem.rule for problem in verdict.problems] == [rule_id]
    assert message in verdict.problems[0].message


@pytest.mark.parametrize("num_steps, fits", [(None, True), (1, True), (7, True), (0, False), (8, False), (-1, False)])
def test_depth_stays_inside_the_draft_block(num_steps, fits):
    assert check(tiny_target(), tiny_draft(), Options(num_drafts=num_steps)).fits is fits


@pytest.mark.parametrize(
    "algorithm, num_steps, fits",
    [("ngram", 31, True), ("ngram", 32, False), ("mtp", 7, True), ("mtp", 8, False), ("off", 1, False)],
)
def test_depth_without_a_draft_is_bounded_too(algorithm, num_steps, fits):
    problems = check(tiny_target(), None, Options(algorithm, num_steps)).problems
    assert ("options.num_steps" not in {problem.rule for problem in problems}) is fits


def test_a_shorter_context_makes_a_short_draft_fit():
    draft = tiny_draft(max_position_embeddings=256)
    assert check(tiny_target(), draft, Options(max_model_len=256)).fits
    assert "use at least 2" in str(check(tiny_target(), draft, Options(max_model_len=1)).errors[0])


def test_a_window_that_no_context_outgrows_is_served():
    """Each token sees all before it, as without one; the class's own window is 4096 where a config leaves it out."""
    switched = {"use_sliding_window": True, "max_window_layers": 2}
    target = tiny_target(**switched, sliding_window=256)
    assert target.layer_types == ("full_attention",) * 2 + ("sliding_attention",) * 2
    assert "use --max-model-len 256" in str(check(target, None, OFF).errors[0])
    assert check(target, None, Options("off", max_model_len=256)).fits
    assert not check(target, None, Options("off", max_model_len=257)).fits
    assert check(tiny_target(**switched), None, OFF).fits
    assert not check(tiny_target(**switched, max_position_embeddings=4097), None, OFF).fits


def test_all_problems_come_at_once_in_the_tables_order():
    draft = tiny_draft(is_causal=True, mask_token_id=1000, num_target_layers=9, output_multiplier=2.0)
    rules = [problem.rule for problem in check(tiny_target(), draft, Options(num_drafts=9)).problems]
    assert rules == [
        "options.num_steps",
        "draft.is_causal",
        "draft.output_multiplier",
        "draft.num_target_layers",
        "draft.mask_token_id",
    ]


@pytest.mark.parametrize("pair", RELEASED_PAIRS, ids=lambda pair: pair.name)
def test_released_pairs_pass_every_rule_about_the_pair(pair):
    """Flash-Next's target is refused by its family alone; its draft fits it."""
    verdict = check(released_target(pair), released_draft(pair))
    expected = ["target.architecture"] if pair is QWEN_FLASH_NEXT else []
    assert [problem.rule for problem in verdict.problems] == expected
    if expected:
        assert "family qwen4_exp, which is known but not served yet" in verdict.problems[0].message


@pytest.mark.parametrize("pair", RELEASED_PAIRS, ids=lambda pair: pair.name)
def test_released_drafts_have_the_published_sizes(pair):
    assert released_draft(pair).num_params == pair.draft_params
    assert set(pair.inferred) <= set(pair.draft_config) | set(pair.draft_config["dflash_config"])


@pytest.mark.parametrize("pair", RELEASED_PAIRS[:2], ids=lambda pair: pair.name)
def test_released_targets_serve_mtp_only_with_its_weights(pair):
    mtp = Options(algorithm="mtp", num_drafts=3)
    assert check(released_target(pair, with_mtp=True), None, mtp).fits
    assert [p.rule for p in check(released_target(pair, with_mtp=False), None, mtp).problems] == ["target.mtp"]


@pytest.mark.parametrize("algorithm", ["off", "ngram"])
def test_targets_need_no_draft_for_ngram_and_off(algorithm):
    for target in (tiny_target(), tiny_target(TINY_HYBRID_CONFIG), gguf_target(dtype="Q4_K")):
        assert check(target, None, Options(algorithm=algorithm)).fits


def test_a_draft_for_a_dense_target_is_not_refused():
    """The specification refuses targets without GDN layers; they are served here."""
    assert check(tiny_target(), tiny_draft()).fits
    assert check(tiny_target(TINY_HYBRID_CONFIG), tiny_draft()).fits


def test_a_verdict_speaks_json_and_text():
    verdict = check(tiny_target(), tiny_draft(vocab_size=97))
    data = json.loads(json.dumps(verdict.to_dict()))
    assert (data["fits"], data["readable"], data["reason"]) == (False, True, "VocabMismatch")
    assert data["problems"][0]["field"] == "draft.vocab_size"
    text = verdict.to_text()
    assert "does not fit" in text
    assert "error: draft.vocab_size: is 97, and the target's is 96; choose a draft" in text
    assert check(tiny_target(), tiny_draft()).reason == "Compatible"
