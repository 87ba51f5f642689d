"""Family `mistral`: its text is transformers' own; a sliding window is served as far as no context outgrows it."""

import json

import pytest
from family_laws import PROPOSERS, check_text, check_window, transformers_texts
from knowing_pairs import knowing_pair
from tiny_models import save_tiny

from paceline_compat import Options, check_locations, read_target
from paceline_runtime.llm import LLM


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return knowing_pair(tmp_path_factory.mktemp("mistral"), "mistral")


@pytest.fixture(scope="module")
def expected(pair):
    return transformers_texts(pair.oracle_target)


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
@pytest.mark.parametrize("algorithm", PROPOSERS)
def test_text_equals_transformers_in_float64(pair, expected, algorithm, overlap):
    check_text(pair, expected, algorithm, overlap=overlap)


def test_a_context_within_the_window_is_served(tmp_path):
    check_window(save_tiny("mistral", tmp_path, sliding_window=48), 48)


def test_a_context_beyond_the_window_is_refused_by_name(tmp_path):
    path = save_tiny("mistral", tmp_path, sliding_window=48)
    with pytest.raises(ValueError, match=r"see 48 tokens \(sliding_window\), and contexts may reach 512.*--max-model-len 48"):
        LLM(str(path), device="cpu")


@pytest.mark.parametrize(
    "fields, window",
    [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 99}, 99), ({"sliding_window": 1 << 20}, 1 << 20)],
)
def test_what_a_config_leaves_out_is_the_windows_default_and_null_is_none(tmp_path, fields, window):
    path = save_tiny("mistral", tmp_path, num_hidden_layers=1)
    config = json.loads((path / "config.json").read_text())
    del config["sliding_window"]
    (path / "config.json").write_text(json.dumps(config | fields | {"max_position_embeddings": 8192}))
    assert window == read_target(str(path)).sliding_window
    assert (window is None or window >= 8192) is check_locations(str(path), None, Options("off")).fits


def test_layer_types_that_transformers_would_ignore_are_refused_by_name(tmp_path):
    path = save_tiny("mistral", tmp_path, num_hidden_layers=1)
    config = json.loads((path / "config.json").read_text()) | {"layer_types": ["sliding_attention"]}
    (path / "config.json").write_text(json.dumps(config))
    (problem,) = check_locations(str(path), None, Options("off")).errors
    assert "layer_types says of some layers what sliding_window does not say of all" in problem.message
