"""Hugging Face folders: sharding, dtypes, and errors that list everything at once."""

import json

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tiny_models import TinyCache, build_reference, logits_of, reference, save_tiny, tiny_prefill

from paceline_compat.errors import MetadataError
from paceline_runtime.layers.weights.shard import Shard
from paceline_runtime.loaders import load_target

IDS = list(range(2, 40))


def logits(model):
    cache = TinyCache(model.facts, model.dtype)
    with torch.no_grad():
        return logits_of(model, tiny_prefill(cache, [(0, 0, IDS)]), cache)


def change_config(path, **fields):
    config = json.loads((path / "config.json").read_text()) | fields
    (path / "config.json").write_text(json.dumps(config))


def change_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def test_a_sharded_checkpoint_equals_a_single_file(tmp_path):
    single = save_tiny("qwen3", tmp_path)
    build_reference("qwen3").save_pretrained(tmp_path / "sharded", max_shard_size="200KB")
    assert (tmp_path / "sharded" / "model.safetensors.index.json").exists()
    one, many = (load_target(path, dtype=torch.float64) for path in (single, tmp_path / "sharded"))
    assert torch.equal(logits(one), logits(many))


def test_weights_are_converted_to_the_engine_dtype(tmp_path):
    path = save_tiny("llama", tmp_path, dtype=torch.bfloat16)
    model = load_target(path, dtype=torch.float64)
    stored = load_file(path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(model.embed(torch.arange(9)), stored[:9].double())


def test_progress_counts_the_bytes_up_to_all_of_them(tmp_path):
    seen = []
    path = save_tiny("llama", tmp_path, num_hidden_layers=1)
    load_target(path, dtype=torch.float64, on_progress=lambda done, total: seen.append((done, total)))
    stored = sum(tensor.nbytes for tensor in load_file(path / "model.safetensors").values())
    assert seen == sorted(seen)
    assert seen[-1] == (stored, stored)
    assert len(seen) == 12


def test_missing_surplus_and_misshapen_tensors_are_all_listed(tmp_path):
    path = save_tiny("llama", tmp_path, num_hidden_layers=1)

    def spoil(tensors):
        del tensors["model.layers.0.mlp.up_proj.weight"], tensors["lm_head.weight"]
        tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(3)
        tensors["model.norm.weight"] = torch.ones(65)

    change_tensors(path, spoil)
    with pytest.raises(MetadataError) as error:
        load_target(path, dtype=torch.float64)
    message = str(error.value)
    assert "missing model.layers.0.mlp.up_proj.weight [128, 64]" in message
    assert "missing lm_head.weight [512, 64]" in message
    assert "surplus model.layers.7.mlp.up_proj.weight [3]" in message
    assert "model.norm.weight is [65] and must be [64]" in message


@pytest.mark.parametrize(
    ("family", "field"), [("llama", "intermediate_size"), ("qwen3_5", "linear_num_value_heads"), ("llama", "vocab_size")]
)
def test_sizes_that_a_config_only_claims_are_refused_before_memory_is_taken_for_them(tmp_path, family, field):
    path = save_tiny(family, tmp_path)
    change_config(path, **{field: 1 << 39})
    with pytest.raises(MetadataError, match="must be"):
        load_target(path, dtype=torch.float64)


def test_values_that_are_not_finite_are_all_named(tmp_path):
    path = save_tiny("llama", tmp_path, dtype=torch.float32, num_hidden_layers=1)

    def spoil(tensors):
        tensors["model.norm.weight"][3] = torch.nan
        tensors["model.layers.0.mlp.up_proj.weight"][1, 2] = 1e6  # finite as stored, infinite in float16
        tensors["model.embed_tokens.weight"][7, 7] = -torch.inf

    change_tensors(path, spoil)
    for dtype, names in ((torch.float32, {"norm", "embed"}), (torch.float16, {"norm", "embed", "up_proj"})):
        with pytest.raises(MetadataError, match="NaN or infinite values") as error:
            load_target(path, dtype=dtype)
        assert {name for name in ("norm", "embed", "up_proj") if name in error.value.what} == names


def test_a_tied_checkpoint_may_store_its_head_and_old_rotary_buffers(tmp_path):
    path = save_tiny("llama", tmp_path, tie_word_embeddings=True)
    before = logits(load_target(path, dtype=torch.float64))

    def repeat(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)

    change_tensors(path, repeat)
    assert torch.equal(logits(load_target(path, dtype=torch.float64)), before)


@pytest.mark.parametrize("name, rows", [("llama", 512), ("llama", 500), ("qwen3_5", 512)])
def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(tmp_path, name, rows):
    """transformers would use it, and says that the config is wrong."""
    path = save_tiny(name, tmp_path, tie_word_embeddings=True)

    def differ(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][:rows].clone()
        tensors["lm_head.weight"][-1, -1] += 1

    change_tensors(path, differ)
    with pytest.raises(MetadataError, match=r"lm_head.weight differs from the embedding.*set tie_word_embeddings to false"):
        load_target(path, dtype=torch.float64)


def test_padded_vocabulary_rows_are_cut_from_the_logits(tmp_path):
    path = save_tiny("llama", tmp_path)
    whole = logits(load_target(path, dtype=torch.float64))
    change_config(path, vocab_size=500)
    cut = load_target(path, dtype=torch.float64)
    assert cut.facts.vocab_size == 500
    torch.testing.assert_close(logits(cut), whole[:, :500])


def refusal(path):
    with pytest.raises(MetadataError) as error:
        load_target(path, dtype=torch.float64)
    return str(error.value)


def test_every_wrong_config_field_is_named_at_once(tmp_path):
    """First what cannot be read, then what is not served."""
    path, rope = save_tiny("llama", tmp_path), {"rope_type": "spiral", "rope_theta": 1e4}
    change_config(path, hidden_act="gelu", rope_parameters=rope, clip_qkv=8)
    for part in ("hidden_act = 'gelu'", "'spiral'", "clip_qkv", "by the llama models here"):
        assert part in refusal(path)
    change_config(path, num_hidden_layers=0, rms_norm_eps=0, num_attention_heads=3)
    for part in ("num_hidden_layers", "rms_norm_eps", "num_attention_heads", "config.json"):
        assert part in refusal(path)


@pytest.mark.parametrize(
    "name,fields,named",
    [
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "extra": 1}}, "extra"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "factor is missing; high_freq_factor"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"sliding_window": 128}, "sliding_window"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantized as fp8"),
        ("llama", {"num_key_value_heads": 3}, "no multiple"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llama", {"eos_token_id": "</s>"}, "eos_token_id"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "sliding_attention"),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 99, "max_window_layers": 2, "layer_types": None},
            "see 99 tokens",
        ),
        ("llama", {"architectures": ["MambaForCausalLM"]}, "LlamaForCausalLM, .*Qwen3"),
        ("llama", {"architectures": []}, r"architecture \[\] is unknown"),
    ],
)
def test_a_field_that_matters_is_refused_by_name(tmp_path, name, fields, named):
    path = save_tiny(name, tmp_path)
    change_config(path, **fields)
    with pytest.raises(MetadataError, match=named):
        load_target(path, dtype=torch.float64)


def test_a_qwen3_window_that_does_nothing_is_accepted(tmp_path):
    path = save_tiny("qwen3", tmp_path)
    before = logits(load_target(path, dtype=torch.float64))
    change_config(path, sliding_window=4096, use_sliding_window=False, max_window_layers=2)
    assert torch.equal(logits(load_target(path, dtype=torch.float64)), before)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_of_two_spellings_of_rope_the_older_counts_as_in_transformers(tmp_path, name):
    path = save_tiny(name, tmp_path)
    scaling = {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0}
    change_config(path, rope_parameters={"rope_type": "default", "rope_theta": 1e3}, rope_scaling=scaling)
    with torch.no_grad():
        expected = reference(path)(torch.tensor([IDS])).logits[0]
    assert (logits(load_target(path, dtype=torch.float64)) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_a_value_lost_between_two_spellings_of_rope_is_named(tmp_path, name):
    """The config of transformers 5 with the `rope_scaling` that model cards tell to add."""
    path = save_tiny(name, tmp_path)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    change_config(path, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, rope_scaling=scaling)
    with pytest.raises(MetadataError, match="leaves out rope_theta: state everything in one of them"):
        load_target(path, dtype=torch.float64)


def test_the_older_spelling_of_rope_means_the_same(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0}
    path = save_tiny("llama", tmp_path, rope_parameters=rope)
    before = logits(load_target(path, dtype=torch.float64))
    scaling = {"type": "linear", "factor": 4.0}
    change_config(path, rope_parameters=None, rope_theta=5e4, rope_scaling=scaling)
    assert torch.equal(logits(load_target(path, dtype=torch.float64)), before)


def test_ends_of_both_configs_are_joined(tmp_path):
    path = save_tiny("llama", tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9, 4]}))
    assert load_target(path, dtype=torch.float64).facts.eos_token_ids == (1, 4, 9)


@pytest.mark.parametrize("told", ["in the config", "by the vocabulary", "in the map"])
def test_the_end_of_the_tokenizer_is_one_too(tmp_path, told):
    """Fine-tunes for chat often change it alone."""
    path = save_tiny("llama", tmp_path)
    tokenizer = {"eos_token": {"content": "<|im_end|>"}}
    if told == "in the config":
        tokenizer["added_tokens_decoder"] = {"7": {"content": "<|im_end|>", "special": True}}
    else:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={f"t{n}": n for n in range(7)}, merges=[]))
        backend.add_special_tokens(["<|im_end|>"])
        backend.save(str(path / "tokenizer.json"))
    name = "special_tokens_map" if told == "in the map" else "tokenizer_config"
    (path / f"{name}.json").write_text(json.dumps(tokenizer))
    assert load_target(path, dtype=torch.float64).facts.eos_token_ids == (1, 7)


@pytest.mark.parametrize("ends", [[[1]], {"a": 1}])
def test_ends_of_generation_that_are_no_ids_are_named(tmp_path, ends):
    path = save_tiny("llama", tmp_path)
    change_config(path, eos_token_id=ends)
    with pytest.raises(MetadataError, match="eos_token_id"):
        load_target(path, dtype=torch.float64)


def test_a_dummy_needs_only_the_config_and_gives_finite_logits(tmp_path):
    path = save_tiny("qwen3", tmp_path)
    (path / "model.safetensors").unlink()
    model = load_target(path, dtype=torch.float32, dummy=True)
    assert logits(model).isfinite().all()
    with pytest.raises(MetadataError, match="safetensors"):
        load_target(path, dtype=torch.float32)


@pytest.mark.parametrize("content,named", [(None, "holds no config.json"), ("{", "JSON"), ("[]", "JSON object")])
def test_an_unreadable_config_is_named(tmp_path, content, named):
    path = save_tiny("llama", tmp_path)
    (path / "config.json").unlink()
    if content is not None:
        (path / "config.json").write_text(content)
    with pytest.raises(MetadataError, match=named):
        load_target(path, dtype=torch.float64)


def test_tensor_parallel_shards_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="shard 1 of 2"):
        Shard(1, 2)
