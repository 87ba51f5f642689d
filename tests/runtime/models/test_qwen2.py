"""Family `qwen2`: its text is transformers' own; a switched-on window is served as far as no context outgrows it."""

import json

import pytest
import torch
from family_laws import PROPOSERS, check_text, check_window, transformers_texts
from knowing_pairs import knowing_pair
from safetensors.torch import load_file
from tiny_gguf import save_tiny_gguf
from tiny_models import TinyCache, build_reference, logits_of, save_tiny, tiny_prefill

from paceline_compat import Options, check_locations, read_target
from paceline_runtime.llm import LLM
from paceline_runtime.loaders import load_target

WINDOWED = {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return knowing_pair(tmp_path_factory.mktemp("qwen2"), "qwen2")


@pytest.fixture(scope="module")
def expected(pair):
    return transformers_texts(pair.oracle_target)


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("algorithm", PROPOSERS)
def test_text_equals_transformers_in_float64(pair, expected, algorithm, overlap):
    check_text(pair, expected, algorithm, overlap=overlap)


def test_a_context_within_the_window_is_served(tmp_path):
    check_window(save_tiny("qwen2", tmp_path, **WINDOWED), 48)


def test_a_context_beyond_the_window_is_refused_by_name(tmp_path):
    path = save_tiny("qwen2", tmp_path, **WINDOWED)
    with pytest.raises(ValueError, match=r"see 48 tokens \(sliding_window\), and contexts may reach 512.*--max-model-len 48"):
        LLM(str(path), device="cpu")


@pytest.mark.parametrize(
    "fields, num_windowed",
    [
        ({}, 0),
        ({"use_sliding_window": True}, 2),
        ({"use_sliding_window": True, "sliding_window": None}, 0),
        ({"use_sliding_window": True, "max_window_layers": 4}, 0),
        ({"use_sliding_window": True, "max_window_layers": 0}, 4),
        ({"use_sliding_window": False, "layer_types": ["full_attention"] * 4}, 0),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 4}, 4),
    ],
)
def test_the_window_is_where_transformers_has_it(tmp_path, fields, num_windowed):
    path = save_tiny("qwen2", tmp_path)
    config = json.loads((path / "config.json").read_text())
    config = {name: value for name, value in config.items() if name not in ("layer_types", "use_sliding_window")}
    config |= {"sliding_window": 64, "max_window_layers": 2, **fields}
    (path / "config.json").write_text(json.dumps(config))
    assert num_windowed == read_target(str(path)).layer_types.count("sliding_attention")
    assert (num_windowed == 0) is check_locations(str(path), None, Options("off")).fits


def test_biases_of_q_k_and_v_are_read_whatever_the_config_says_and_must_be_there(tmp_path):
    """The class has them, and no field for them."""
    path = save_tiny("qwen2", tmp_path, num_hidden_layers=1, attention_bias=False)
    assert 3 == sum(name.endswith(".bias") for name in load_file(path / "model.safetensors"))
    assert check_locations(str(path), None, Options("off")).fits
    llama = save_tiny("llama", tmp_path, num_hidden_layers=1)
    config = json.loads((llama / "config.json").read_text()) | {"architectures": ["Qwen2ForCausalLM"]}
    (llama / "config.json").write_text(json.dumps(config))
    (problem,) = check_locations(str(llama), None, Options("off")).errors
    assert "missing: model.layers.0.self_attn.q_proj.bias" in problem.message


def test_a_float32_gguf_equals_its_safetensors(tmp_path):
    """Up to the norms' epsilon, which a GGUF holds in float32. Its converter leaves the rows of q and k as they are."""
    reference = build_reference("qwen2", dtype=torch.float32)
    reference.save_pretrained(tmp_path / "folder")
    path = save_tiny_gguf(reference, tmp_path / "model.gguf", architecture="qwen2")
    logits = []
    for model in (load_target(place, dtype=torch.float64) for place in (path, tmp_path / "folder")):
        cache = TinyCache(model.facts, model.dtype)
        with torch.no_grad():
            logits.append(logits_of(model, tiny_prefill(cache, [(0, 0, list(range(2, 72)))]), cache))
    torch.testing.assert_close(*logits, rtol=1e-9, atol=1e-9)
