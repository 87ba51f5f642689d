"""Ways in which hybrid checkpoints are stored: experts stacked or one by one, text inside a multimodal model, an MTP head."""

import json

import pytest
import torch
from hybrid_models import HYBRIDS, IDS, HybridRunner, save_hybrid
from safetensors.torch import load_file, save_file
from tiny_models import reference

from paceline_compat import Options, check_locations
from paceline_compat.errors import MetadataError
from paceline_runtime.loaders import load_target

pytestmark = pytest.mark.usefixtures("no_grad")
FILE = "model.safetensors"


def logits(path):
    return HybridRunner(load_target(path, dtype=torch.float64)).prefill((0, 0, IDS[:70]))


def change_tensors(path, change):
    save_file(change(load_file(path / FILE)), path / FILE)


def change_config(path, change):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(change(config)))


def stacked(tensors):
    """Experts of one layer as two tensors."""
    names = [name for name in tensors if ".experts." in name]
    out = {name: tensor for name, tensor in tensors.items() if name not in names}
    for layer in sorted({name.partition(".experts.")[0] for name in names}):
        count = sum(name.startswith(f"{layer}.experts.") for name in names) // 3
        gate, up, down = (
            torch.stack([tensors[f"{layer}.experts.{e}.{part}_proj.weight"] for e in range(count)])
            for part in ("gate", "up", "down")
        )
        out |= {f"{layer}.experts.gate_up_proj": torch.cat((gate, up), 1), f"{layer}.experts.down_proj": down}
    return out


def inside_multimodal(tensors):
    """The names of a model with a vision tower, and a tensor of it."""
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    return {**renamed, "model.visual.patch_embed.proj.weight": torch.zeros(2, 3)}


def nested(architecture):
    """The config of a model with a vision tower."""

    def change(config):
        end, text = (
            config["eos_token_id"],
            {k: v for k, v in config.items() if k not in ("architectures", "tie_word_embeddings")},
        )
        around = {"architectures": [architecture], "tie_word_embeddings": config["tie_word_embeddings"], "vision_config": {}}
        return {**around, "eos_token_id": 9, "text_config": {**text, "eos_token_id": end}}

    return change


def test_stacked_experts_equal_single_ones(tmp_path):
    path = save_hybrid("qwen3_5_moe", tmp_path)
    assert any(".experts.3.up_proj" in name for name in load_file(path / FILE)), "transformers saves experts one by one"
    single = logits(path)
    change_tensors(path, stacked)
    assert torch.equal(single, logits(path))


def test_missing_experts_are_named_in_the_form_that_is_stored(tmp_path):
    path = save_hybrid("qwen3_5_moe", tmp_path)
    lost = "model.layers.1.mlp.experts.5.down_proj.weight"
    change_tensors(path, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != lost})
    with pytest.raises(MetadataError, match=f"missing {lost}") as error:
        load_target(path, dtype=torch.float64)
    assert "gate_up_proj" not in str(error.value)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_the_text_part_of_a_multimodal_checkpoint_is_served(name, tied, tmp_path, caplog):
    path = save_hybrid(name, tmp_path, tie_word_embeddings=tied)
    plain = logits(path)
    architecture = {"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}[name] + "ForConditionalGeneration"
    change_config(path, nested(architecture))
    change_tensors(path, inside_multimodal)
    with caplog.at_level("INFO"):
        assert torch.equal(plain, logits(path))
    assert caplog.text.count("vision tower is not loaded") == 1
    assert {1, 9} == set(load_target(path, dtype=torch.float64).facts.eos_token_ids)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_multimodal_config_says_outside_its_text_part_whether_the_head_is_tied(name, tied, tmp_path):
    """transformers writes both, and the text part's own is at its default."""
    path = save_hybrid(name, tmp_path, tie_word_embeddings=tied)
    plain = logits(path)
    change_config(path, nested({"qwen3_5": "Qwen3_5", "qwen3_5_moe": "Qwen3_5Moe"}[name] + "ForConditionalGeneration"))
    change_config(path, lambda config: {**config, "text_config": {**config["text_config"], "tie_word_embeddings": not tied}})
    change_tensors(path, inside_multimodal)
    assert check_locations(str(path), None, Options("off")).fits
    assert torch.equal(plain, logits(path))


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_text_part_saved_alone_keeps_the_names_it_had_inside(name, tmp_path):
    """As `save_pretrained` writes a text model that was loaded from a multimodal checkpoint: plain config, nested names."""
    path = save_hybrid(name, tmp_path)
    plain = logits(path)
    change_tensors(path, inside_multimodal)
    assert check_locations(str(path), None, Options("off")).fits
    assert torch.equal(plain, logits(path))


def test_a_padded_vocabulary_is_read_inside_a_multimodal_config_too(tmp_path):
    path = save_hybrid("qwen3_5", tmp_path)
    plain = logits(path)
    change_config(path, nested("Qwen3_5ForConditionalGeneration"))
    change_tensors(path, inside_multimodal)
    padding = torch.ones(8, 64, dtype=torch.float64)
    ends = ("model.language_model.embed_tokens.weight", "lm_head.weight")
    change_tensors(path, lambda tensors: {**tensors, **{name: torch.cat((tensors[name], padding)) for name in ends}})
    assert torch.equal(plain, logits(path))


def test_the_mtp_head_stays_out_of_the_target(tmp_path):
    path = save_hybrid("qwen3_5", tmp_path)
    plain, size = logits(path), load_target(path, dtype=torch.float64).memory_bytes()
    change_tensors(path, lambda tensors: {**tensors, "mtp.fc.weight": torch.zeros(64, 128)})
    assert torch.equal(plain, logits(path))
    assert size == load_target(path, dtype=torch.float64).memory_bytes()


def test_layer_types_follow_the_interval_where_none_are_listed(tmp_path):
    path = save_hybrid("qwen3_5", tmp_path)
    plain = logits(path)
    change_config(path, lambda config: {k: v for k, v in config.items() if k != "layer_types"})
    assert torch.equal(plain, logits(path))


def test_of_two_spellings_of_rope_the_older_counts_as_in_transformers(tmp_path):
    path = save_hybrid("qwen3_5", tmp_path)
    scaling = {"rope_type": "default", "rope_theta": 5e2, "partial_rotary_factor": 0.5}
    both = {"rope_parameters": {"rope_theta": 1e5, "mrope_section": [1, 1, 0]}, "rope_scaling": scaling}
    change_config(path, lambda config: {**config, **both})
    expected = reference(path)(torch.tensor([IDS[:70]])).logits[0]
    assert (logits(path) - expected).norm() <= 1e-5 * expected.norm()


UNREADABLE = {
    "num_attention_heads": (3, "num_attention_heads is 3, no multiple of num_key_value_heads 2"),
    "linear_key_head_dim": (0, "linear_key_head_dim is 0, not between 1 and"),
    "num_experts_per_tok": (9, "num_experts_per_tok is 9, more than num_experts 8"),
}
UNSERVED = {
    "linear_num_value_heads": (5, "5 value heads are no multiple of 2 key heads"),
    "layer_types": (["linear_attention"], "names 1 layers of 4"),
    "attn_output_gate": (False, "attn_output_gate = False"),
    "output_gate_type": ("sigmoid", "output_gate_type = 'sigmoid'"),
    "norm_topk_prob": (False, "norm_topk_prob = False"),
}


@pytest.mark.parametrize("bad", [UNREADABLE, UNSERVED])
def test_every_wrong_field_is_reported_at_once(tmp_path, bad):
    path = save_hybrid("qwen3_5_moe", tmp_path)
    change_config(path, lambda config: {**config, **{name: value for name, (value, _) in bad.items()}})
    with pytest.raises(MetadataError) as error:
        load_target(path, dtype=torch.float64)
    for name, (_, message) in bad.items():
        assert message in str(error.value), name


@pytest.mark.parametrize("name", HYBRIDS)
def test_dummy_weights_give_finite_logits(name, tmp_path):
    path = save_hybrid(name, tmp_path)
    (path / FILE).unlink()
    runner = HybridRunner(load_target(path, dtype=torch.float32, dummy=True))
    assert runner.prefill((0, 0, IDS[:70])).isfinite().all()
    assert runner.verify((0, 70, IDS[70:75])).isfinite().all()
