"""`paceline bench step` on tiny shapes: what it counts, what it commits, what it refuses."""

import json
from xml.etree import ElementTree

import pytest
import torch
from bench_flags import TINY_SHAPE, parse

from paceline_compat.memory.buffers import target_buffers
from paceline_compat.memory.layout import MemoryLayout
from paceline_runtime import bench
from paceline_runtime.batch import VerifyBatch
from paceline_runtime.bench.acceptance import SyntheticAcceptance, assumed_tokens_per_step
from paceline_runtime.bench.drive import (
    HOST_STEPS,
    TRACED_STEPS,
    WARM_UP_STEPS,
    Sizes,
    drain,
    make_engine,
    measure_host_s,
    random_prompt,
    start_decoding,
)
from paceline_runtime.bench.limits import measure_limits
from paceline_runtime.bench.plot import lines_of, svg
from paceline_runtime.bench.shapes import SHAPES, find_shape
from paceline_runtime.bench.subjects import subject
from paceline_runtime.bench.sweep import Cell, Run
from paceline_runtime.bench.traffic import distinct_experts, step_traffic
from paceline_runtime.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def folder(tmp_path):
    """A folder that holds a config and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(TINY_SHAPE))
    return tmp_path


def step_args(folder, *words):
    """A short measurement of the tiny shape."""
    short = ("--requests", "1,2", "--context-tokens", "70", "--steps", "3", "--prefill-tokens", "130")
    return parse("step", "--dummy-weights", "--shape", str(folder), *short, *words)


@pytest.fixture
def quick_limits(monkeypatch):
    """Limits of a megabyte: the tests look at no speed."""
    monkeypatch.setattr("paceline_runtime.bench.step.measure_limits", lambda device: measure_limits(device, 1 << 20))


@pytest.mark.usefixtures("quick_limits")
def test_step_writes_what_it_prints(folder, tmp_path, capsys):
    """Every algorithm and batch size is in the table and in the JSON; what is not there yet is named."""
    out = tmp_path / "figures.json"
    args = step_args(folder, "--algorithms", "off,ngram,dflash", "--json", str(out))

    assert bench.run(args) == 0

    printed, figures = capsys.readouterr().out, json.loads(out.read_text())
    assert [("off", 1), ("off", 2), ("ngram", 1), ("ngram", 2), ("dflash", 1), ("dflash", 2)] == [
        (row["algorithm"], row["num_requests"]) for row in figures["decode"]
    ]
    assert printed.count(" dflash |") == 2, "the table"
    assert printed.count("dflash of 7 drafts, ") == 2, "said as measured"
    assert "acceptance is synthetic" in printed
    assert all(row["step_s"] >= row["launch_s"] > 0 for row in figures["decode"])
    assert figures["prefill"]["num_tokens"] == 130
    assert "not measured on a CPU: device time" in printed
    assert all(
        row["host_s"] is row["device_busy_s"] is row["idle_share"] is row["kernels"] is None for row in figures["decode"]
    )


@pytest.mark.usefixtures("quick_limits")
def test_a_sweep_has_every_cell_and_marks_those_without_room(folder, tmp_path, capsys):
    """Every depth, context and batch size; what does not fit costs the others nothing, and contexts are as long as they say."""
    out = tmp_path / "figures.json"
    sizes = ("--algorithms", "off,ngram", "--num-steps", "3,5", "--context-tokens", "70,500000000")

    assert 0 == bench.run(step_args(folder, *sizes, "--json", str(out)))

    printed, figures = capsys.readouterr().out, json.loads(out.read_text())
    small = [(kind, drafts, requests, 70) for kind, drafts in (("off", 0), ("ngram", 3), ("ngram", 5)) for requests in (1, 2)]
    names = ("algorithm", "num_steps", "num_requests", "context_tokens")
    assert small == [tuple(row[name] for name in names) for row in figures["decode"]]
    assert all(70 < row["mean_context_tokens"] < 300 for row in figures["decode"])
    assert 6 == printed.count("no room |") == len(figures["not_measured"])
    assert "off, 1 requests, contexts of 500000000: " in printed
    assert all("do not fit" in reason for reason in figures["not_measured"])


def test_a_cell_has_room_for_those_who_decode_before_the_last_prompt():
    """Eight prompts of four chunks each: the first decodes 31 steps while the others are prefilled."""
    cell, how = Cell("ngram", 3, 8, 256), Run(num_steps=10, prefill_chunk=64)

    assert cell.max_model_len(how) >= 256 + 4 * (31 + WARM_UP_STEPS + 10 + HOST_STEPS + TRACED_STEPS)


def test_the_host_is_timed_with_the_device_at_rest(monkeypatch):
    """A step that waits for the device would count its work as the host's."""
    happened, now = [], [0.0]

    class Stepping:
        def step(self):
            happened.append("step")
            now[0] += 0.25

    monkeypatch.setattr("paceline_runtime.bench.drive.synchronize", lambda device: happened.append("wait"))
    monkeypatch.setattr("paceline_runtime.bench.drive.time.perf_counter", lambda: now[0])

    assert 0.25 == measure_host_s(Stepping(), torch.device("cpu"))
    assert ["wait", "step"] * HOST_STEPS == happened


@pytest.mark.parametrize("tokens_per_step", [1.0, 2.5, 4.0])
def test_synthetic_acceptance_commits_the_assumed_mean(folder, tokens_per_step):
    """Over whole steps the mean is met exactly, whatever the drafts were."""
    with subject(step_args(folder), 256) as one:
        proposer = one.proposer("ngram", 3, 256)
        sizes = Sizes(num_requests=2, max_model_len=256, prefill_chunk=64)
        engine = make_engine(one, proposer, sizes, SyntheticAcceptance(tokens_per_step, one.target.device))
        names = start_decoding(engine, 2, 40)
        committed = [tokens for _ in range(8) for tokens in engine.step() if tokens.steps]
        drain(engine, names)

    assert len(committed) >= 12
    by_request = {name: [len(t.token_ids) for t in committed if t.request_id == name] for name in names}
    assert {round(sum(runs) / len(runs), 1) for runs in by_request.values()} <= {
        round(tokens_per_step + offset / 10, 1) for offset in range(-1, 2)
    }
    engine.check_integrity()


def test_traffic_of_a_dense_step_is_its_weights_and_its_context(folder):
    """By hand: every matrix but the embedding, and K/V of each position."""
    with subject(step_args(folder), 256) as one:
        traffic = step_traffic(one.shape.text, one.target, None, 2, 100)
    attention = 64 * (4 + 2 + 2) * 16 + 4 * 16 * 64 + 2 * 16
    layer = attention + 3 * 64 * 96 + 2 * 64

    assert traffic.weight_bytes == 4 * (4 * layer + 64 + 96 * 64)
    assert traffic.kv_bytes == 2 * 100 * 4 * 2 * 2 * 16 * 4
    assert traffic.draft_bytes == traffic.state_bytes == 0


def test_traffic_of_a_hybrid_mixture(tmp_path):
    """Unchosen experts are not read, and every request's state is read and written."""
    cut = SHAPES["qwen3.6-35b-a3b"].with_layers(4)
    sizes = dict(hidden_size=64, num_attention_heads=2, linear_num_key_heads=1, linear_num_value_heads=2, vocab_size=96)
    experts = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    cut.target["text_config"].update(sizes, **experts, eos_token_id=[1])
    (tmp_path / "config.json").write_text(json.dumps(cut.target))
    with subject(step_args(tmp_path), 256) as one:
        traffic = step_traffic(one.shape.text, one.target, None, 1, 100)
        embedding = 96 * 64 * 4
        state_bytes = MemoryLayout(target_buffers(one.target.facts, "float32", 0)).bytes_per("slot")
        weights = one.target.memory_bytes()

    assert traffic.num_experts == pytest.approx(2)
    assert traffic.weight_bytes == weights - embedding - 4 * 6 * 3 * 64 * 16 * 4
    assert traffic.state_bytes == 2 * state_bytes > 0


def test_distinct_experts_of_a_block():
    """The published 57 of 256 for eight rows of eight; all of them for very many rows."""
    assert round(distinct_experts(256, 8, 8)) == 57
    assert distinct_experts(256, 8, 1) == pytest.approx(8)
    assert distinct_experts(256, 8, 10_000) == pytest.approx(256)
    assert distinct_experts(0, 0, 8) == 0


def test_published_tokens_per_step_come_before_the_assumption():
    """At other depths a flat conditional rate stands in, and without drafts one token is exact."""
    shape = SHAPES["qwen3.8-27b"]

    assert assumed_tokens_per_step(shape, "dflash", 7) == (5.47, "published")
    assert assumed_tokens_per_step(shape, "off", 0) == (1.0, "exact")
    assert assumed_tokens_per_step(shape, "dflash", 1)[0] == pytest.approx(1.85)


def test_fewer_layers_keep_the_taps_inside():
    """A cut target has a draft that fits it."""
    cut = SHAPES["qwen3.6-35b-a3b"].with_layers(4)

    assert cut.text["num_hidden_layers"] == 4
    assert cut.draft["dflash_config"]["target_layer_ids"] == [0, 1, 2, 3]
    assert SHAPES["qwen3.6-35b-a3b"].text["num_hidden_layers"] == 40


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shape", "no-such"), "neither one of"),
        (("--shape", "qwen3.8-27b"), "add --dummy-weights"),
        (("--shape", "smollm2-135m", "--dummy-weights", "--layers", "31"), "between 1 .* and 30"),
        (("--shape", "qwen3.8-27b", "--dummy-weights", "--layers", "3"), "between 4 .* and 64"),
    ],
)
def test_wrong_shapes_are_refused_with_the_remedy(words, message):
    """By the flag's name."""
    with pytest.raises(ConfigError, match=message):
        bench.run(parse("step", *words))


@pytest.mark.usefixtures("quick_limits")
def test_impossible_acceptance_is_refused(folder):
    """More tokens than a step can commit."""
    with pytest.raises(ConfigError, match="between 1 and 4 at 3 drafts"):
        bench.run(step_args(folder, "--algorithms", "ngram", "--tokens-per-step", "4.5"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num-steps", "3"), "--num-steps has no meaning with --algorithms off"),
        (("--tokens-per-step", "2"), "--tokens-per-step has no meaning with --algorithms off"),
        (("--device", "nowhere"), "--device must be"),
        (("--prefill-tokens", "1", "--pretend-contexts"), "--prefill-tokens measures a prefill and --pretend-contexts"),
        (("--device", "cpu", "--tiles", "own.json"), r"--tiles .* has no meaning on a CPU"),
        (("--device", "cpu", "--profile"), "--profile lists a GPU's kernels and a CPU has none"),
    ],
)
def test_flags_without_effect_and_unknown_devices_are_refused(folder, words, message):
    """As errors of who measures, not as tracebacks."""
    with pytest.raises(ConfigError, match=message):
        bench.run(step_args(folder, *words))


@pytest.mark.parametrize(("algorithm", "most"), [("dflash", 7), ("ngram", 31)])
def test_deeper_drafts_than_are_served_are_not_measured(folder, algorithm, most):
    """Nobody could have these figures."""
    with subject(step_args(folder), 256) as one, pytest.raises(ValueError, match=f"more than the {most} drafts"):
        one.proposer(algorithm, most + 1, 256)


def test_pretended_contexts_are_there_after_one_step(folder):
    """Nothing but decode steps reaches the target; each request has its length, goes on from its last token, and is served."""
    with subject(step_args(folder), 700) as one:
        seen, forward = [], one.target.forward
        one.target.forward = lambda batch, *rest: seen.append(type(batch)) or forward(batch, *rest)
        engine = make_engine(one, one.proposer("dflash", 7, 700), Sizes(3, 700, 64, pretends=True))
        names = start_decoding(engine, 3, 600)
        seats, lengths = engine.executor.seats, engine.executor.seats.lengths.tolist()
        pending = seats.history[1:4, 600].tolist()
        last = [random_prompt(engine, 600, index)[-1] for index in range(3)]
        committed = [len(tokens.token_ids) for _ in range(4) for tokens in engine.step()]
        drain(engine, names)

    assert [0, 600, 600, 600] == lengths
    assert last == pending
    assert {VerifyBatch} == set(seen)
    assert len(committed) >= 9
    assert min(committed) >= 1
    engine.check_integrity()


@pytest.mark.usefixtures("quick_limits")
def test_a_sweep_over_pretended_contexts_says_so_and_is_drawn(folder, tmp_path, capsys):
    """No prefill is measured; the drawing has a line for each algorithm and context, and a point for each batch."""
    plot, out = tmp_path / "sweep.svg", tmp_path / "figures.json"
    words = (
        "--algorithms",
        "off,ngram",
        "--requests",
        "1,2,8",
        "--context-tokens",
        "64,5000",
        "--steps",
        "2",
        "--pretend-contexts",
    )
    files = ("--plot", str(plot), "--json", str(out))

    assert 0 == bench.run(parse("step", "--dummy-weights", "--shape", str(folder), *words, *files))

    figures, drawn = json.loads(out.read_text()), ElementTree.fromstring(plot.read_text())
    assert figures["contexts_are_pretended"]
    assert figures["prefill"] is None
    assert 12 == len(figures["decode"])
    assert all(row["context_tokens"] < row["mean_context_tokens"] < row["context_tokens"] + 200 for row in figures["decode"])
    assert "contexts are pretended: no prompt was computed" in capsys.readouterr().out
    assert 12 == len([place for place in drawn.iter(f"{SVG}circle") if float(place.get("cx")) <= 660])
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert ["off, 64 tokens", "off, 5,000 tokens", "ngram k=3, 64 tokens", "ngram k=3, 5,000 tokens"] == texts[-4:]
    assert "contexts are pretended" in texts[0]


def test_a_plot_places_points_by_batch_and_time():
    """By hand: batches 1, 2 and 4 at equal distances, 0 ms at the bottom, the highest tick at the top."""
    cells = [(Cell("off", 0, batch, 1024), ms / 1e3) for batch, ms in ((4, 16.0), (1, 8.0), (2, 12.0))]
    drawn = ElementTree.fromstring(svg(lines_of(cells), "a < b"))
    line = next(drawn.iter(f"{SVG}polyline")).get("points")
    points = [tuple(map(float, point.split(","))) for point in line.split()]

    assert [70.0, 365.0, 660.0] == [x for x, _ in points]
    assert [235.0, 137.5, 40.0] == [y for _, y in points]
    assert "a < b" == next(drawn.iter(f"{SVG}text")).text


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["Qwen3ForCausalLM"]}'])
def test_a_config_that_describes_no_target_is_refused(tmp_path, text):
    """With its folder, and what is wrong in it."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"its config\.json is no target's"):
        find_shape(str(tmp_path))


def test_read_kernel_sums_every_element():
    """Also where the last block is partial."""
    from paceline_kernels.backend import Backend
    from paceline_kernels.stream_read import stream_read

    for size in (1, 2048, 5000):
        x = torch.randint(-1000, 1000, (size,), dtype=torch.int32)

        parts, whole = (stream_read(x, backend=backend) for backend in (Backend.KERNEL, Backend.REFERENCE))

        assert parts.sum(dtype=torch.int32) == whole


def test_released_drafts_have_the_published_number_of_parameters():
    """The shapes reproduce 1,924,404,480 and 526,251,520 weights."""
    from math import prod

    from paceline_compat.facts.checkpoint import draft_facts
    from paceline_compat.facts.draft_tensors import expected_shapes

    sizes = {
        name: sum(prod(shape) for shape in expected_shapes(draft_facts(name, find_shape(name).draft, {})).values())
        for name in ("qwen3.8-27b", "qwen3.6-35b-a3b")
    }
    assert {"qwen3.8-27b": 1_924_404_480, "qwen3.6-35b-a3b": 526_251_520} == sizes
