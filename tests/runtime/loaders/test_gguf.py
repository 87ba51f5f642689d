"""GGUF files of architecture llama: values, names, what is refused."""

import re

import gguf
import pytest
import torch
from tiny_gguf import random_blocks, save_tiny_gguf
from tiny_models import TinyCache, build_reference, logits_of, tiny_prefill

from paceline_compat import read_target
from paceline_compat.errors import MetadataError
from paceline_runtime.loaders import load_target
from paceline_runtime.loaders.dequantize import UNPACKERS, dequantize
from paceline_runtime.text.load import load_tokenizer

IDS = [(5 * i * i + i) % 250 + 2 for i in range(70)]


def logits(model):
    cache = TinyCache(model.facts, model.dtype)
    with torch.no_grad():
        return logits_of(model, tiny_prefill(cache, [(0, 0, IDS)]), cache)


def oracle_logits(model):
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize("kind", UNPACKERS)
def test_blocks_dequantize_to_the_bits_of_the_gguf_package(kind):
    blocks = random_blocks(kind, 300)
    expected = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    assert torch.equal(dequantize(blocks.flatten(), kind, expected.shape), torch.from_numpy(expected))


def test_a_tensor_larger_than_one_chunk_is_dequantized_whole():
    blocks = random_blocks("Q8_0", (1 << 20) // 32 + 3)
    expected = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(dequantize(blocks.flatten(), "Q8_0", expected.shape), torch.from_numpy(expected))


@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": True, "num_key_value_heads": 1}])
def test_a_float32_gguf_equals_its_safetensors(tmp_path, overrides):
    """Up to the norms' epsilon, which a GGUF holds in float32."""
    reference = build_reference("llama", dtype=torch.float32, **overrides)
    reference.save_pretrained(tmp_path / "folder")
    path = save_tiny_gguf(reference, tmp_path / "model.gguf")
    from_gguf, from_folder = (load_target(p, dtype=torch.float64) for p in (path, tmp_path / "folder"))
    same = ("family", "num_layers", "hidden_size", "num_kv_heads", "head_dim", "vocab_size", "max_positions", "eos_token_ids")
    for name in same:
        assert getattr(from_folder.facts, name) == getattr(from_gguf.facts, name), name
    torch.testing.assert_close(logits(from_gguf), logits(from_folder), rtol=1e-9, atol=1e-9)


def test_a_folder_may_stand_for_the_one_gguf_in_it(tmp_path):
    """As a fetch from a bucket or a registry leaves it; of several, one is to be named."""
    model = build_reference("llama")
    save_tiny_gguf(model, tmp_path / "model.gguf")
    assert read_target(str(tmp_path)).format == "gguf"
    assert load_target(tmp_path, dtype=torch.float32).facts.family == "llama"
    save_tiny_gguf(model, tmp_path / "other.gguf")
    for load in (read_target, lambda path: load_target(path, dtype=torch.float32), load_tokenizer):
        with pytest.raises(MetadataError, match=r"holds 2 GGUF files.*name one of them: model\.gguf, other\.gguf"):
            load(str(tmp_path))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_quantized_gguf_equals_transformers_on_the_dequantized_weights(tmp_path, kind):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=2)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", kind=kind)
    quantized_type = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim > 1:
                packed = gguf.quants.quantize(parameter.numpy(), quantized_type)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, quantized_type)))
    expected = oracle_logits(reference.double())
    actual = logits(load_target(path, dtype=torch.float64))
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


LAYERED = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.feed_forward_length": 128}


def test_sizes_may_be_stated_for_each_layer(tmp_path):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=2)
    layered = {key: [value, value] for key, value in LAYERED.items()}
    plain, path = (save_tiny_gguf(reference, tmp_path / f"{len(k)}.gguf", extra_keys=k) for k in ({}, layered))
    assert read_target(str(path)).num_kv_heads == 2
    assert torch.equal(*(logits(load_target(p, dtype=torch.float64)) for p in (plain, path)))


@pytest.mark.parametrize("key", LAYERED)
@pytest.mark.parametrize("other", [0, 1])
def test_sizes_that_differ_by_layer_are_refused_before_and_at_loading(tmp_path, key, other):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=2)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", extra_keys={key: [LAYERED[key], other]})
    for read in (lambda: read_target(str(path)), lambda: load_target(path, dtype=torch.float32)):
        with pytest.raises(MetadataError, match=rf"{re.escape(key)}' differs by layer"):
            read()


def test_rope_divisors_scale_the_frequencies(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    reference = build_reference("llama", dtype=torch.float32, rope_parameters=rope)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", rope_divisors=torch.full((8,), 4.0))
    expected = oracle_logits(reference.double())
    actual = logits(load_target(path, dtype=torch.float64))
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


def test_rope_scaling_keys_are_read(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    reference = build_reference("llama", dtype=torch.float32, rope_parameters=rope)
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4}
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", extra_keys=keys)
    expected = oracle_logits(reference.double())
    actual = logits(load_target(path, dtype=torch.float64))
    assert (actual - expected).norm() <= 1e-5 * expected.norm()


LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "factor alone": ({"factor": 4}, LINEAR),
    "neutral attn_factor": ({"type": "linear", "factor": 4, "attn_factor": 1}, LINEAR),
    "yarn": ({"type": "yarn", "factor": 4, "original_context_length": 64, "attn_factor": 1}, YARN),
    "linear by nothing": ({"type": "linear"}, LINEAR | {"factor": 1.0}),
    "yarn by nothing": ({"type": "yarn", "original_context_length": 64}, LINEAR | {"factor": 1.0}),
    "none": ({"type": "none", "factor": 4}, LINEAR | {"factor": 1.0}),
}


@pytest.mark.parametrize("keys, rope", SCALINGS.values(), ids=SCALINGS.keys())
def test_scaling_keys_mean_what_they_mean_to_llama_cpp(tmp_path, keys, rope):
    reference = build_reference("llama", dtype=torch.float32, rope_parameters=rope)
    stated = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", extra_keys=stated)
    assert read_target(str(path)).variants == {}
    expected = oracle_logits(reference.double())
    assert (logits(load_target(path, dtype=torch.float64)) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(
    "keys, num_divisors, named",
    [
        ({"type": "yarn", "factor": 4, "attn_factor": 2}, 0, "llama.rope.scaling.attn_factor"),
        ({"type": "linear", "factor": 4}, 8, "llama.rope.scaling.type"),
        ({"type": "llama3", "factor": 4}, 0, "llama.rope.scaling.type"),
        ({"factor": -4}, 0, "llama.rope.scaling.factor"),
        ({}, 7, "rope_freqs.weight"),
    ],
)
def test_a_scaling_that_is_not_applied_whole_is_refused_before_and_at_loading(tmp_path, keys, num_divisors, named):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=1)
    stated = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    divisors = torch.full((num_divisors,), 2.0) if num_divisors else None
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", extra_keys=stated, rope_divisors=divisors)
    assert named in read_target(str(path)).variants
    with pytest.raises(MetadataError, match=re.escape(named)):
        load_target(path, dtype=torch.float32)


def test_the_ends_of_generation_are_named_and_spelled(tmp_path):
    reference = build_reference("llama", dtype=torch.float32)
    tokens = [f"t{index}" for index in range(512)]
    tokens[7], tokens[9], tokens[11], tokens[13] = "<|im_end|>", "<reponame>", "<|endoftext|>", "<|fim_prefix|>"
    path = save_tiny_gguf(reference, tmp_path / "m.gguf", tokens=tokens, extra_keys={"tokenizer.ggml.eot_token_id": 20})
    assert load_target(path, dtype=torch.float32).facts.eos_token_ids == (1, 7, 9, 11, 20)


@pytest.mark.parametrize(
    "keys,named",
    [
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.logit_scale": 2}, "llama.logit_scale"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_metadata_that_changes_the_computation_is_refused_by_name(tmp_path, keys, named):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=1)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", extra_keys=keys)
    with pytest.raises(MetadataError, match=named):
        load_target(path, dtype=torch.float32)


def test_a_tensor_type_that_is_not_read_is_refused_by_name(tmp_path):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=1)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", kind="Q5_0")
    with pytest.raises(MetadataError, match=r"Q5_0.*Q4_K"):
        load_target(path, dtype=torch.float32)


def test_another_architecture_is_refused_with_the_supported_ones(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("x", torch.zeros(4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(MetadataError, match="architecture mamba is unknown; served are llama"):
        load_target(tmp_path / "m.gguf", dtype=torch.float32)


def test_a_truncated_file_is_refused(tmp_path):
    reference = build_reference("llama", dtype=torch.float32, num_hidden_layers=1)
    path = save_tiny_gguf(reference, tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(MetadataError, match="truncated"):
        load_target(path, dtype=torch.float32)
