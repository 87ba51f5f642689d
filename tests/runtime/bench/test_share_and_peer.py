"""`paceline bench share` and `peer` at tiny sizes: what they measure and how they judge it, not how fast anything is."""

import json

import pytest
import torch
from bench_flags import parse
from tiny_gguf import save_tiny_gguf
from tiny_models import build_reference, save_tiny

from paceline_runtime import bench
from paceline_runtime.bench.drive import Sizes, make_engine
from paceline_runtime.bench.peer import compare
from paceline_runtime.bench.serving_memory import ServingMemory, measure_serving_memory
from paceline_runtime.bench.share import _Gaps, measure_share
from paceline_runtime.bench.subjects import subject
from paceline_runtime.errors import ConfigError


def test_share_times_every_token_of_those_who_decode():
    """One gap per step and request alone; beside the prefill until its first token came, and everything freed."""
    args = parse("share", "--dummy-weights", "--shape", "smollm2-135m", "--layers", "1")
    with subject(args, 1024) as one:
        engine = make_engine(one, None, Sizes(num_requests=3, max_model_len=1024, prefill_chunk=64))
        share = measure_share(engine, 2, 20, 600, 5)

    assert share.before.num_samples == 2 * 4 <= share.after.num_samples
    assert share.beside.num_samples >= 2
    assert 0 < share.before.median_s <= share.before.p99_s
    assert share.ratio == 2 * share.beside.mean_s / (share.before.mean_s + share.after.mean_s)
    assert not engine.has_work
    engine.check_integrity()


def test_compare_takes_the_median_of_pairs_and_says_when_ids_differ(monkeypatch):
    """On a clock that each side moves by what it takes: ours one second a token, theirs two."""
    now = [0.0]
    monkeypatch.setattr("paceline_runtime.bench.peer.time.perf_counter", lambda: now[0])

    def side(seconds, token):
        def generate(prompt, num_tokens):
            now[0] += seconds * num_tokens
            return [token] * num_tokens

        return generate

    phases, is_same = compare(side(1.0, 7), side(2.0, 7), [1, 2, 3], 5, 3)
    _, differs = compare(side(1.0, 7), side(2.0, 8), [1, 2, 3], 5, 1)

    assert [(phase.name, phase.ours, phase.theirs, phase.ratio) for phase in phases] == [
        ("prefill", 3.0, 1.5, 2.0),
        ("decode", 1.0, 0.5, 2.0),
    ]
    assert is_same
    assert not differs


def test_peer_runs_a_gguf_on_both_sides(tmp_path, capsys):
    """The same greedy ids from the engine and from transformers on the dequantized weights."""
    model = build_reference("llama", dtype=torch.float32, num_hidden_layers=2)
    path, out = save_tiny_gguf(model, tmp_path / "tiny.gguf"), tmp_path / "figures.json"
    sizes = ("--pairs", "1", "--prompt-tokens", "20", "--new-tokens", "4")

    bench.run(parse("peer", "--model", str(path), "--skip-memory", "--json", str(out), *sizes))

    figures = json.loads(out.read_text())
    assert figures["ids_equal"]
    assert ["prefill", "decode"] == [phase["name"] for phase in figures["phases"]]
    assert "greedy ids of 4 tokens are equal" in capsys.readouterr().out


def test_peer_refuses_another_family(tmp_path):
    """Whose weights it cannot give to the other side."""
    path = save_tiny("qwen3", tmp_path)
    with pytest.raises(ConfigError, match=r"is a qwen3: name a \.gguf file of the llama family"):
        bench.run(parse("peer", "--model", str(path), "--skip-memory"))


def test_the_memory_of_a_model_with_a_short_context_is_measured(tmp_path, monkeypatch):
    """With its own context, not with one that the server refuses once all pairs have run."""
    path = save_tiny_gguf(build_reference("llama", dtype=torch.float32, num_hidden_layers=1), tmp_path / "tiny.gguf")
    contexts = []
    monkeypatch.setattr(
        "paceline_runtime.bench.serving_memory._served_bytes",
        lambda model, dtype, threads, max_model_len: contexts.append(max_model_len) or 1,
    )

    assert measure_serving_memory(str(path), "float32", 1).kv_bytes > 0
    assert contexts == [512]


def test_memory_may_be_weights_cache_torch_and_200_mib():
    """The bound of the figure, and its text."""
    memory = ServingMemory(used_bytes=900 << 20, weight_bytes=500 << 20, kv_bytes=100 << 20, torch_bytes=150 << 20)

    assert memory.allowed_bytes == 950 << 20
    assert memory.to_text().startswith("server and engine: 900 MiB, to be within 950")


def test_unknown_algorithms_and_batch_sizes_are_refused():
    """By argparse, before anything is built."""
    for words in (("--algorithms", "off,magic"), ("--requests", "0"), ("--requests", "1,x")):
        with pytest.raises(SystemExit):
            parse("step", "--shape", "smollm2-135m", *words)


@pytest.mark.parametrize(
    "words",
    [
        *(("step", "--shape", "x", flag, "0") for flag in ("--steps", "--context-tokens", "--num-steps", "--threads")),
        ("step", "--shape", "x", "--prefill-tokens", "-1"),
        ("step", "--shape", "x", "--prefill-chunk", "63"),
        ("share", "--shape", "x", "--steps", "1"),
        *(("share", "--shape", "x", flag, "0") for flag in ("--requests", "--context-tokens", "--prompt-tokens")),
        ("peer", "--model", "x", "--new-tokens", "1"),
        *(("peer", "--model", "x", flag, "0") for flag in ("--pairs", "--prompt-tokens", "--threads")),
    ],
    ids=" ".join,
)
def test_sizes_that_cannot_be_measured_are_refused(words, capsys):
    """A chunk of less than a page would never end, the others would only fail late."""
    with pytest.raises(SystemExit, match="2"):
        parse(*words)

    assert f"argument {words[-2]}: must be at least" in capsys.readouterr().err


def test_a_prompt_beside_which_nothing_was_timed_is_refused():
    """It is over within the step that takes it up."""
    with pytest.raises(ConfigError, match="raise --prompt-tokens"):
        _Gaps(["one"]).take()


@pytest.mark.parametrize("file", ["nowhere/figures.json", "."])
@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_figures_that_cannot_be_written_are_refused_before_they_are_measured(tmp_path, flag, file):
    """Not minutes later."""
    words = (flag, str(tmp_path / file))
    with pytest.raises(ConfigError, match=rf"{flag} .* cannot be written"):
        bench.run(parse("step", "--shape", "smollm2-135m", "--dummy-weights", *words))
