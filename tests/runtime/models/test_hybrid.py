"""Families qwen3_5 and qwen3_5_moe against transformers on tiny random checkpoints."""

import pytest
import torch
from hybrid_models import HYBRIDS, IDS, HybridRunner, save_hybrid
from tiny_models import TapRecorder, reference

from paceline_runtime.loaders import load_target

pytestmark = pytest.mark.usefixtures("no_grad")

VARIANTS = {
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True},
    "one-key-head-per-value-head": {"linear_num_key_heads": 4},
    "full-attention-first": {"layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"]},
    "odd-sizes": {"linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_conv_kernel_dim": 3, "vocab_size": 321},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "wide-rotary": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
}


def expected_logits(oracle, ids):
    return oracle(torch.tensor([ids])).logits[0]


def assert_close(actual, expected):
    """Relative to the spread of the logits; transformers' norms, recurrence and router go through float32."""
    assert not actual.isnan().any()
    assert (actual - expected).double().norm() <= 1e-5 * expected.double().norm()


def test_prefill_equals_transformers(hybrid, oracle):
    assert_close(HybridRunner(hybrid).prefill((0, 0, IDS)), expected_logits(oracle, IDS))


def test_prefill_in_chunks_beside_another_request_equals_transformers(hybrid, oracle):
    runner, other = HybridRunner(hybrid, num_requests=2), IDS[40:100]
    first = runner.prefill((1, 0, other[:30]), (0, 0, IDS[:64]))
    second = runner.prefill((0, 64, IDS[64:128]), (1, 30, other[30:]))
    third = runner.prefill((0, 128, IDS[128:]))
    assert_close(torch.cat([first[30:], second[:64], third]), expected_logits(oracle, IDS))
    assert_close(torch.cat([first[:30], second[64:]]), expected_logits(oracle, other))


def test_decode_steps_of_requests_of_different_length_equal_transformers(hybrid, oracle):
    runner, other = HybridRunner(hybrid, num_requests=2), IDS[3:40]
    runner.prefill((0, 0, IDS[:126]), (1, 0, other[:2]))
    for step in range(6):
        out = runner.verify((0, 126 + step, [IDS[126 + step]]), (1, 2 + step, [other[2 + step]]))
        runner.keep(0, 1)
        runner.keep(1, 1)
        assert_close(out[0], expected_logits(oracle, IDS[: 127 + step])[-1])
        assert_close(out[1], expected_logits(oracle, other[: 3 + step])[-1])


def test_verify_rows_equal_transformers_and_a_rejected_block_leaves_no_trace(hybrid, oracle):
    runner = HybridRunner(hybrid, num_requests=2)
    runner.prefill((0, 0, IDS[:60]), (1, 0, IDS[:5]))
    wrong = [299 - token for token in IDS[61:68]]
    runner.verify((0, 60, [IDS[60], *wrong]), (1, 5, IDS[5:13]))
    runner.keep(0, 1)
    runner.keep(1, 8)
    out = runner.verify((0, 61, IDS[61:69]), (1, 13, IDS[13:21]))
    assert_close(out[:8], expected_logits(oracle, IDS[:69])[61:])
    assert_close(out[8:], expected_logits(oracle, IDS[:21])[13:])


def test_taps_are_the_layer_outputs_with_the_residual_added(hybrid, oracle):
    last, hooked = hybrid.facts.num_layers - 1, []
    sink = TapRecorder([0, 2, last])
    hook = oracle.model.layers[last].register_forward_hook(lambda _module, _args, output: hooked.append(output))
    states = oracle(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    hook.remove()
    hidden = HybridRunner(hybrid).prefill((0, 0, IDS), sink=sink)
    assert list(sink.outputs) == [0, 2, last]
    for layer in (0, 2):
        assert_close(sink.outputs[layer], states[layer + 1][0])
    raw = hooked[0] if isinstance(hooked[0], torch.Tensor) else hooked[0][0]
    assert_close(sink.outputs[last], raw.view_as(hidden))
    assert_close(hidden, states[-1][0])


def test_shape_and_memory_are_those_of_the_checkpoint(hybrid, oracle):
    assert (3, 1) == (hybrid.facts.num_linear_layers, hybrid.facts.num_full_attention_layers)
    assert hybrid.memory_bytes() == sum(parameter.nbytes for parameter in oracle.parameters())
    assert torch.equal(hybrid.embed(torch.tensor([3, 300])), oracle.get_input_embeddings()(torch.tensor([3, 300])))


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS.keys())
def test_each_variant_equals_transformers(name, overrides, tmp_path):
    path = save_hybrid(name, tmp_path, **overrides)
    runner, oracle = HybridRunner(load_target(path, dtype=torch.float64)), reference(path)
    expected = expected_logits(oracle, IDS[:75])
    assert_close(runner.prefill((0, 0, IDS[:70])), expected[:70])
    assert_close(runner.verify((0, 70, IDS[70:75])), expected[70:])


@pytest.mark.parametrize("name", HYBRIDS)
def test_float32_equals_transformers(name, tmp_path):
    path = save_hybrid(name, tmp_path, dtype=torch.float32)
    runner, oracle = HybridRunner(load_target(path, dtype=torch.float32)), reference(path, torch.float32)
    expected = expected_logits(oracle, IDS[:104])
    assert_close(runner.prefill((0, 0, IDS[:100])), expected[:100])
    assert_close(runner.verify((0, 100, IDS[100:104])), expected[100:])
