"""What no rule refuses loads and takes the bytes that were planned; what makes another decoder of a family is refused."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny

from paceline_compat import Options, check_locations, read_target
from paceline_compat.errors import MetadataError
from paceline_compat.facts.families import SERVED_FAMILIES
from paceline_compat.facts.rope_fields import ROPE_FIELDS
from paceline_compat.memory.parts import target_weight_bytes
from paceline_runtime.layers.rotary import _SCALES
from paceline_runtime.loaders import load_target

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe")
DENSE, HYBRIDS = FAMILIES[:4], FAMILIES[4:]
BIASED_BY_CONFIG = ("llama", "qwen3", *HYBRIDS)

REFUSED = [
    *((family, {"num_attention_heads": 3}) for family in FAMILIES),
    *((family, {"intermediate_size": 64}) for family in FAMILIES[:5]),
    *((family, {"rope_parameters": {"rope_type": "default", "factor": 2.0}}) for family in FAMILIES),
    *((family, {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 5e5}}) for family in FAMILIES),
    *((family, {"partial_rotary_factor": 3.0, "rope_parameters": {"rope_type": "default"}}) for family in DENSE),
    *((family, {"rope_is_neox_style": False}) for family in FAMILIES),
    *((family, {"attention_bias": 1}) for family in FAMILIES),
    *((family, {"attention_bias": True}) for family in BIASED_BY_CONFIG),
    *((family, {"mlp_bias": True}) for family in BIASED_BY_CONFIG[:2]),
    *((family, {"num_experts": 8}) for family in DENSE),
    *((family, {"attn_output_gate": False}) for family in HYBRIDS),
    *((family, {"output_gate_type": "sigmoid"}) for family in HYBRIDS),
    *((family, {"num_key_value_heads": None}) for family in HYBRIDS),
    *((family, {"head_dim": None}) for family in HYBRIDS),
    ("llama", {"sliding_window": 128}),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1, "layer_types": None}),
    ("qwen3_5_moe", {"norm_topk_prob": False}),
    ("qwen3_5_moe", {"mlp_only_layers": [1]}),
    ("qwen3_5_moe", {"decoder_sparse_step": 2}),
    ("qwen3_5_moe", {"num_experts_per_tok": 9}),
    ("qwen3_5_moe", {"num_experts": 4}),
    ("qwen3_5_moe", {"num_experts": 1 << 39}),
]
NULLS = {"rms_norm_eps": None, "tie_word_embeddings": None, "attention_bias": None, "rope_scaling": {"rope_type": None}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        save_tiny(family, folder, dtype=torch.float32)
    return folder


def changed(source: Path, folder: Path, fields: dict) -> Path:
    """The same checkpoint with other fields in its config."""
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def repeat_embedding_as_head(path: Path) -> None:
    """Tied, and stored all the same."""
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    (path / "model.safetensors").unlink()
    save_file(tensors, path / "model.safetensors")


def test_every_served_family_has_a_model_and_every_served_rope_a_formula():
    assert FAMILIES == SERVED_FAMILIES
    for family in SERVED_FAMILIES:
        assert callable(importlib.import_module(f"paceline_runtime.models.{family}").build)
    assert set(ROPE_FIELDS) == set(_SCALES)


@pytest.mark.parametrize("family, fields", REFUSED)
def test_a_config_that_makes_another_decoder_of_its_family_is_refused(checkpoints, tmp_path, family, fields):
    path = changed(checkpoints / family, tmp_path, fields)
    assert not check_locations(str(path), None, Options("off")).fits
    with pytest.raises(MetadataError):
        load_target(path, dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": True}, NULLS], ids=["as saved", "tied", "nulls"])
def test_what_fits_loads_and_takes_the_bytes_that_were_planned(checkpoints, tmp_path, family, fields):
    path = changed(checkpoints / family, tmp_path, fields)
    if fields.get("tie_word_embeddings"):
        repeat_embedding_as_head(path)
    assert check_locations(str(path), None, Options("off")).fits
    assert target_weight_bytes(read_target(str(path)), 4) == load_target(path, dtype=torch.float32).memory_bytes()


@pytest.mark.parametrize("family", DENSE)
@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_heads_of_odd_size_are_refused(checkpoints, tmp_path, family, kind):
    """Rotary pairs need two halves, and transformers refuses such a config; the rest of it is made to fit."""
    scaling = {"rope_type": kind, "factor": 2.0} if kind == "yarn" else {"rope_type": kind}
    path = changed(checkpoints / family, tmp_path, {"head_dim": 5, "rope_parameters": scaling})
    tensors = {
        name: tensor[..., : tensor.shape[-1] * 5 // 16] if name.endswith("o_proj.weight") else tensor[: len(tensor) * 5 // 16]
        for name, tensor in load_file(path / "model.safetensors").items()
        if ".self_attn." in name
    }
    tensors = load_file(path / "model.safetensors") | {name: tensor.contiguous() for name, tensor in tensors.items()}
    (path / "model.safetensors").unlink()
    save_file(tensors, path / "model.safetensors")
    (problem,) = check_locations(str(path), None, Options("off")).problems
    assert problem.rule == "target.rope"
    assert "head_dim 5 is odd" in problem.message
    with pytest.raises(MetadataError, match="head_dim 5 is odd"):
        load_target(path, dtype=torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stated, longest", [({"original_max_position_embeddings": 1024}, 4096), ({}, 2048), (None, 512)])
def test_yarn_stretches_the_context_that_it_was_made_for(checkpoints, tmp_path, family, stated, longest):
    """Configs leave `max_position_embeddings` where training ended; without YaRN it is the limit."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0} if stated is not None else {"rope_type": "default"}
    fields = {"rope_parameters": rope | (stated or {}), "rope_scaling": None, "max_position_embeddings": 512}
    path = changed(checkpoints / family, tmp_path, fields)
    assert check_locations(str(path), None, Options("off", max_model_len=longest)).fits
    assert not check_locations(str(path), None, Options("off", max_model_len=longest + 1)).fits
    assert longest == load_target(path, dtype=torch.float32).facts.max_positions


@pytest.mark.parametrize("switch", ["attention_bias", "mlp_bias"])
def test_biases_that_the_config_does_not_state_are_refused(tmp_path, switch):
    path = save_tiny("llama", tmp_path, attention_bias=True, mlp_bias=True)
    assert check_locations(str(path), None, Options("off")).fits
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {switch: False}))
    assert not check_locations(str(path), None, Options("off")).fits
    with pytest.raises(MetadataError, match="surplus"):
        load_target(path, dtype=torch.float32)
