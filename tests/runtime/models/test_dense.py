"""The dense families against transformers on tiny random checkpoints."""

import dataclasses

import pytest
import torch
from tiny_models import TapRecorder, TinyCache, logits_of, reference, save_tiny, tiny_prefill, tiny_verify

from paceline_runtime.loaders import load_target

pytestmark = pytest.mark.usefixtures("no_grad")

ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn-mscale": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "beta_fast": 16,
        "beta_slow": 2,
        "truncate": False,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 0.8,
    },
}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied-biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-one-head-group": ("llama", {"num_key_value_heads": 4}),
    "llama-odd-heads": ("llama", {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48, "vocab_size": 321}),
    "mistral": ("mistral", {}),
    "mistral-tied-wide-heads": ("mistral", {"tie_word_embeddings": True, "head_dim": 32, "num_key_value_heads": 1}),
    "mistral-derived-heads": ("mistral", {"head_dim": None, "hidden_size": 96}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-wide-heads": ("qwen3", {"tie_word_embeddings": True, "head_dim": 32, "attention_bias": True}),
}
IDS = [(7 * i * i + 3 * i + 2) % 300 + 2 for i in range(160)]


@pytest.fixture(scope="module")
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=VARIANTS.keys())
def pair(request, tmp_path_factory):
    """Our model and transformers' of one checkpoint, in float64."""
    name, overrides = request.param
    path = save_tiny(name, tmp_path_factory.mktemp("tiny"), **overrides)
    return load_target(path, dtype=torch.float64), reference(path)


def expected_logits(oracle, ids):
    return oracle(torch.tensor([ids])).logits[0]


def assert_close(actual, expected):
    """Relative to the spread of the logits; transformers' norms and softmax go through float32."""
    assert not actual.isnan().any()
    assert (actual - expected).double().norm() <= 1e-5 * expected.double().norm()


def test_prefill_equals_transformers(pair):
    model, oracle = pair
    cache = TinyCache(model.facts, model.dtype)
    assert_close(logits_of(model, tiny_prefill(cache, [(0, 0, IDS)]), cache), expected_logits(oracle, IDS))


def test_prefill_in_chunks_beside_another_request_equals_transformers(pair):
    model, oracle = pair
    cache, other = TinyCache(model.facts, model.dtype, num_requests=2), IDS[40:100]
    rows = [
        logits_of(model, tiny_prefill(cache, chunks), cache)
        for chunks in (
            [(1, 0, other[:30]), (0, 0, IDS[:64])],
            [(0, 64, IDS[64:128]), (1, 30, other[30:])],
            [(0, 128, IDS[128:])],
        )
    ]
    first = torch.cat([rows[0][30:], rows[1][:64], rows[2]])
    assert_close(first, expected_logits(oracle, IDS))
    assert_close(torch.cat([rows[0][:30], rows[1][64:]]), expected_logits(oracle, other))


def test_decode_steps_of_requests_of_different_length_equal_transformers(pair):
    model, oracle = pair
    cache, other = TinyCache(model.facts, model.dtype, num_requests=2), IDS[3:40]
    logits_of(model, tiny_prefill(cache, [(0, 0, IDS[:126]), (1, 0, other[:20])]), cache)
    for step in range(6):
        rows = [(0, 126 + step, [IDS[126 + step]]), (1, 20 + step, [other[20 + step]])]
        out = logits_of(model, tiny_verify(cache, rows), cache)
        assert_close(out[0], expected_logits(oracle, IDS[: 127 + step])[-1])
        assert_close(out[1], expected_logits(oracle, other[: 21 + step])[-1])


def test_verify_rows_equal_transformers_and_a_rejected_block_is_overwritten(pair):
    model, oracle = pair
    cache = TinyCache(model.facts, model.dtype, num_requests=2)
    logits_of(model, tiny_prefill(cache, [(0, 0, IDS[:60]), (1, 0, IDS[:5])]), cache)
    wrong = [299 - token for token in IDS[60:68]]
    logits_of(model, tiny_verify(cache, [(0, 60, wrong), (1, 5, IDS[5:13])]), cache)
    out = logits_of(model, tiny_verify(cache, [(0, 60, IDS[60:68]), (1, 13, IDS[13:21])]), cache)
    assert_close(out[:8], expected_logits(oracle, IDS[:68])[60:])
    assert_close(out[8:], expected_logits(oracle, IDS[:21])[13:])


def test_taps_are_the_layer_outputs_with_the_residual_added(pair):
    model, oracle = pair
    cache, last = TinyCache(model.facts, model.dtype), model.facts.num_layers - 1
    sink, hooked = TapRecorder([0, 2, last]), []
    hook = oracle.model.layers[last].register_forward_hook(lambda _module, _args, output: hooked.append(output))
    states = oracle(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    hook.remove()
    hidden = model.forward(tiny_prefill(cache, [(0, 0, IDS)]), cache.memory, sink)
    assert list(sink.outputs) == [0, 2, last]
    for layer in (0, 2):
        assert_close(sink.outputs[layer], states[layer + 1][0])
    raw = hooked[0] if isinstance(hooked[0], torch.Tensor) else hooked[0][0]
    assert_close(sink.outputs[last], raw.view_as(hidden))
    assert_close(hidden, states[-1][0])


def test_embed_and_memory_are_those_of_the_weights(pair):
    model, oracle = pair
    ids = torch.tensor([[3, 4], [5, 300]])
    assert torch.equal(model.embed(ids), oracle.get_input_embeddings()(ids))
    assert model.memory_bytes() == sum(parameter.nbytes for parameter in oracle.parameters())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_each_rope_variant_equals_transformers(name, rope, tmp_path):
    path = save_tiny(name, tmp_path, rope_parameters=rope, num_hidden_layers=2)
    model = load_target(path, dtype=torch.float64)
    cache = TinyCache(model.facts, model.dtype)
    assert_close(logits_of(model, tiny_prefill(cache, [(0, 0, IDS)]), cache), expected_logits(reference(path), IDS))


@pytest.mark.parametrize("name", FAMILIES)
def test_float32_equals_transformers(name, tmp_path):
    path = save_tiny(name, tmp_path, dtype=torch.float32)
    model, oracle = load_target(path, dtype=torch.float32), reference(path, torch.float32)
    cache = TinyCache(model.facts, model.dtype)
    assert_close(logits_of(model, tiny_prefill(cache, [(0, 0, IDS[:100])]), cache), expected_logits(oracle, IDS[:100]))
    out = logits_of(model, tiny_verify(cache, [(0, 100, IDS[100:104])]), cache)
    assert_close(out, expected_logits(oracle, IDS[:104])[100:])


def on_gpu(batch):
    moved = {name: value.cuda() for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(batch, **moved)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_bfloat16_on_a_gpu_is_near_float64_and_a_graph_replays_it(name, tmp_path):
    """Prefill in chunks and a verify of 8 rows through the GPU kernels; 2e-2 is the project's bound for bfloat16."""
    path = save_tiny(name, tmp_path, dtype=torch.bfloat16, scale=0.1)
    exact, model = load_target(path, dtype=torch.float64), load_target(path, dtype=torch.bfloat16, device="cuda")
    caches = TinyCache(exact.facts, exact.dtype), TinyCache(model.facts, model.dtype)
    for pages in (caches[1].memory.pages.keys, caches[1].memory.pages.values):
        pages[:] = [page.cuda() for page in pages]
    for start, stop in ((0, 64), (64, 120)):
        batch = tiny_prefill(caches[0], [(0, start, IDS[start:stop])])
        expected = logits_of(exact, batch, caches[0])
        actual = logits_of(model, on_gpu(batch), caches[1])
        assert (actual.cpu().double() - expected).norm() <= 2e-2 * expected.norm()
    batch = tiny_verify(caches[0], [(0, 120, IDS[120:128])])
    expected, moved = logits_of(exact, batch, caches[0]), on_gpu(batch)
    eager, graph = logits_of(model, moved, caches[1]), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = logits_of(model, moved, caches[1])
    graph.replay()
    assert torch.equal(replayed, eager)
    assert (eager.cpu().double() - expected).norm() <= 2e-2 * expected.norm()
