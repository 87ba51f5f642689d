"""What the plan said is what the process uses, and a plan that cannot fit says by how much and what to change."""

import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from law_engine import run
from tiny_models import save_tiny

from paceline_compat import PlanOptions, plan, read_target
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import assemble, build_engine, pick_device
from paceline_runtime.engine.host_memory import host_free_bytes
from paceline_runtime.engine.memory import budget_bytes, captures, graph_bytes, plan_memory
from paceline_runtime.messages import Rebuild, Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.speculative.ngram import NgramProposer


def _config(**options):
    return EngineConfig(**{**dict(model_path="tiny", memory_bytes=1 << 30, max_model_len=300), **options})


def test_the_stores_are_as_large_as_planned(target):
    """Every planned part that is a store is asked for its bytes."""
    engine = assemble(_config(), target, NgramProposer(3))
    parts = dict(plan_memory(_config(), target, NgramProposer(3)).parts)

    assert parts["target weights"] == target.memory_bytes()
    assert parts["K/V and context pages"] == engine.executor.memory.pages.memory_bytes()


def test_graphs_are_planned_where_steps_are_captured(target):
    """Their pool holds the largest step, drafts and all, beside what prefills take; a CPU and a plain engine have none."""
    config, drafts = _config(), NgramProposer(3)
    on_gpu = SimpleNamespace(facts=target.facts, dtype=target.dtype, device=torch.device("cuda"))

    assert captures(config, on_gpu.device)
    assert not captures(_config(cuda_graphs=False), on_gpu.device)
    assert "CUDA graphs" not in dict(plan_memory(config, target, drafts).parts)
    assert graph_bytes(config, on_gpu, drafts) - graph_bytes(config, on_gpu, None) >= 3 * 4 * 4 * target.facts.vocab_size


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_5", "qwen3_5_moe"])
def test_the_plan_from_headers_agrees_with_the_loaded_one(tmp_path, family):
    """`paceline plan` and the engine give the same weights, pages, temporaries and history for the same budget."""
    path = save_tiny(family, tmp_path, dtype=torch.float32)
    options = dict(memory_bytes=6 << 20, max_model_len=300, dtype="float32", max_running_req=3, max_prefill_tokens=64)
    engine = build_engine(EngineConfig(model_path=str(path), **options))
    said = plan(
        6 << 20,
        read_target(str(path)),
        None,
        PlanOptions(dtype="float32", max_running=3, max_model_len=300, max_prefill_tokens=64),
    )
    rows = {row.name: row.num_bytes for row in said.rows}
    parts = dict(plan_memory(EngineConfig(model_path=str(path), **options), engine.executor.target, None).parts)

    assert rows["target weights"] == engine.executor.target.memory_bytes()
    assert parts["step temporaries"] == sum(rows[name] for name in ("logits", "prefill temporaries", "gathered K/V"))
    assert said.page_bytes * engine.executor.memory.pages.num_pages == engine.executor.memory.pages.memory_bytes()
    assert rows["seats"] == parts["seats"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(num_pages=3), "needs 5 pages, but 3 fit"),
        (dict(memory_bytes=1 << 20), "MiB are short.*--max-model-len"),
        (dict(memory_bytes=1, max_model_len=None), "one context of 64 tokens needs 1 pages, but 0 fit"),
    ],
)
def test_too_little_memory_says_how_much_and_what_to_change(target, options, words):
    """Before anything is allocated."""
    with pytest.raises(ValueError, match=words):
        assemble(_config(**options), target, None)


def test_without_a_length_the_context_is_what_fits(target):
    """The model's 512 positions where memory allows, fewer pages otherwise."""
    assert 512 == assemble(_config(max_model_len=None), target, None).info.max_model_len
    assert 192 == assemble(_config(max_model_len=None, num_pages=3), target, None).info.max_model_len


@pytest.mark.parametrize("pages", [5, 40])
def test_a_rebuilt_cache_repeats_the_output(target, pages):
    """Resized while idle, smaller or larger, the engine answers the same prompt with the same text, and starts cold."""
    config = _config(num_pages=12)
    engine = assemble(config, target, NgramProposer(3))
    prompt = {"one": ([7, 3, 9, 11, 5, 2] * 25, SamplingParams(max_tokens=40, ignore_eos=True))}
    first = run(engine, prompt)["one"]
    rebuilt = engine.rebuild(Rebuild(num_pages=pages))
    again = run(engine, prompt)["one"]

    assert (pages, None) == (rebuilt.num_pages, rebuilt.error)
    assert first.token_ids == again.token_ids
    assert 0 == again.cached_tokens
    assert pages + 1 == engine.executor.memory.pages.num_pages


@pytest.mark.parametrize("overlap", [False, True], ids=["lag0", "lag1"])
def test_a_cache_is_rebuilt_as_soon_as_the_last_request_has_ended(target, overlap):
    """A step that was launched ahead is no reason to wait, and what was counted goes on."""
    engine = assemble(_config(num_pages=5, overlap=overlap), target, None)
    for token in (5, 6):
        engine.add(
            Submit(request_id=str(token), prompt_ids=[token] * 64, params=SamplingParams(max_tokens=130, ignore_eos=True))
        )
    ended = 0
    while ended < 2:
        ended += sum(tokens.finish_reason is not None for tokens in engine.step())
    before = engine.stats()

    assert engine.has_work == overlap
    assert engine.rebuild(Rebuild(num_pages=7)).error is None
    assert (before.preemptions, before.evicted_pages) == (engine.stats().preemptions, engine.stats().evicted_pages)
    assert before.preemptions > 0
    assert before.evicted_pages > 0
    assert not engine.has_work


def test_more_pages_than_there_is_memory_for_are_refused_and_the_old_ones_stay(target):
    """At the start and later, with how much is short; nothing is freed or allocated before."""
    with pytest.raises(ValueError, match=r"1000000 pages do not fit: [\d,]+ MiB are short.*at most \d+ fit"):
        assemble(_config(num_pages=10**6), target, None)
    engine = assemble(_config(num_pages=12, memory_bytes=None), target, None)
    error = engine.rebuild(Rebuild(num_pages=10**9)).error

    assert "1000000000 pages do not fit" in error
    assert 13 == engine.executor.memory.pages.num_pages
    assert 3 == len(run(engine, {"one": ([5, 6], SamplingParams(max_tokens=3, ignore_eos=True))})["one"].token_ids)


def test_the_pages_said_to_fit_do(target):
    """The most that the refusal names is no less and no more than what the budget holds."""
    with pytest.raises(ValueError, match="do not fit") as refusal:
        assemble(_config(num_pages=10**6), target, None)
    most = int(re.search(r"at most (\d+) fit", str(refusal.value))[1])

    assert plan_memory(_config(num_pages=most), target, None).total_bytes <= 1 << 30
    with pytest.raises(ValueError, match="do not fit: 0 MiB are short"):
        plan_memory(_config(num_pages=most + 1), target, None)


def test_fewer_pages_are_no_remedy_where_none_fits(target):
    """The rest is too large then, and what it depends on is named."""
    with pytest.raises(ValueError, match=r"12 pages do not fit.*Lower --max-model-len, --max-running-requests, or raise"):
        plan_memory(_config(num_pages=12, memory_bytes=1 << 20), target, None)


def test_what_is_short_counts_all_that_does_not_fit(target):
    """Weights and temporaries beyond the budget are short too, not the pages alone."""
    needed = sum(size for _, size in plan_memory(_config(num_pages=5), target, None).parts)
    with pytest.raises(ValueError, match=f"{(needed - (1 << 20)) / 2**20:,.0f} MiB are short"):
        plan_memory(_config(memory_bytes=1 << 20), target, None)


def test_a_new_budget_outweighs_the_first_number_of_pages(target):
    """Asked for memory, an engine that was given pages takes what fits; asked for both, the pages."""
    engine = assemble(_config(num_pages=12), target, None)

    assert engine.rebuild(Rebuild(memory_bytes=1 << 29)).num_pages > 12
    assert 9 == engine.rebuild(Rebuild(memory_bytes=1 << 29, num_pages=9)).num_pages


def test_state_slots_are_refused_where_there_is_no_state(target):
    """At the start and later."""
    with pytest.raises(ValueError, match="no meaning for a qwen3"):
        assemble(_config(num_state_slots=20), target, None)

    assert "no meaning" in assemble(_config(), target, None).rebuild(Rebuild(num_state_slots=20)).error


@pytest.mark.parametrize(
    ("name", "words"),
    [("gpu", "must be auto"), ("mps", "must be auto"), ("cuda:x", "must be auto"), ("cuda:99", "usable GPUs")],
)
def test_a_device_that_is_not_there_is_named(name, words):
    """With what may be chosen."""
    with pytest.raises(ValueError, match=words):
        pick_device(name)


def test_a_cache_is_not_rebuilt_under_a_request_nor_too_small(target):
    """Both leave the engine as it was."""
    config = _config(num_pages=12)
    engine = assemble(config, target, None)
    assert "needs 5 pages, but 2 fit" in engine.rebuild(Rebuild(num_pages=2)).error
    assert "--num-pages must be at least 1" in engine.rebuild(Rebuild(num_pages=0)).error
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    engine.add(Submit(request_id="one", prompt_ids=[5, 6], params=params))
    busy = engine.rebuild(Rebuild(num_pages=40))
    assert busy.is_busy
    assert "while no request runs" in busy.error

    assert 13 == engine.executor.memory.pages.num_pages
    assert 3 == len([token for _ in range(9) for tokens in engine.step() for token in tokens.token_ids])


def test_cached_files_of_a_container_can_be_had_back(tmp_path):
    """A checkpoint that was just read fills the container's limit; it would leave nothing for the model."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 4096 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("3000000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("2900000\n")
    (tmp_path / "sys/fs/cgroup/memory.stat").write_text("anon 500000\nactive_file 400000\ninactive_file 1900000\n")

    assert 2_400_000 == host_free_bytes(tmp_path)


@pytest.mark.parametrize(("limit", "expected"), [("max", 4096 * 1024), ("3000000", 1_000_000), (None, 4096 * 1024)])
def test_a_containers_limit_counts(tmp_path, limit, expected):
    """The smaller of what the kernel calls available and what the container may still take."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9999 kB\nMemAvailable: 4096 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    if limit is not None:
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (tmp_path / "sys/fs/cgroup/memory.current").write_text("2000000\n")

    assert expected == host_free_bytes(tmp_path)


def test_a_misfit_is_refused_before_loading(tmp_path, monkeypatch):
    """By the table of rules, all problems at once, and by the plan."""
    path = str(save_tiny("llama", tmp_path))
    monkeypatch.setattr("paceline_runtime.engine.build.load_target", lambda *args, **kwargs: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match=r"options\.max_model_len: 9999"):
        build_engine(EngineConfig(model_path=path, max_model_len=9999))
    with pytest.raises(ValueError, match=r"does not fit(.|\n)*MiB are short"):
        build_engine(EngineConfig(model_path=path, memory_bytes=1 << 20, dtype="float32"))
    with pytest.raises(ValueError, match="no meaning for a llama"):
        build_engine(EngineConfig(model_path=path, num_state_slots=20))


def test_a_given_number_of_state_slots_is_what_has_to_fit(tmp_path):
    """Before loading too: five for each of many requests would not."""
    path = save_tiny("qwen3_5", tmp_path, dtype=torch.float32)
    sizes = dict(max_model_len=300, max_prefill_tokens=64, num_pages=5, dtype="float32")
    options = PlanOptions(max_running=32, num_state_slots=64, **sizes)
    least = sum(row.num_bytes for row in plan(1 << 40, read_target(str(path)), None, options).rows)
    config = EngineConfig(model_path=str(path), memory_bytes=least, max_running_req=32, **sizes)

    assert build_engine(replace(config, num_state_slots=64)).executor.memory.states.num_slots == 65
    with pytest.raises(ValueError, match="does not fit"):
        build_engine(config)


def test_what_is_loaded_already_is_not_counted_against_the_budget_twice(target, monkeypatch):
    """Target and draft are both part of the plan, and no longer part of what is free."""

    class Heavy(NgramProposer):
        def memory_bytes(self):
            return 5000

    monkeypatch.setattr("paceline_runtime.engine.memory.host_free_bytes", lambda: 10**6)
    config = _config(memory_bytes=None, memory_ratio=1.0, max_running_req=2)

    assert budget_bytes(config, target, None) == 10**6 + target.memory_bytes()
    assert budget_bytes(config, target, Heavy(3)) == 10**6 + target.memory_bytes() + 5000
    assert budget_bytes(config, target, Heavy(3), freed_bytes=70) == 10**6 + target.memory_bytes() + 5070


def test_an_engine_on_a_cpu_imports_no_compiler(tmp_path):
    """Triton and torch's compiler would take 150 MiB of a server that never uses them."""
    path = save_tiny("qwen3", tmp_path, dtype=torch.float32)
    program = (
        "import sys; from paceline_runtime import LLM, SamplingParams;"
        f"llm = LLM({str(path)!r}, device='cpu', max_model_len=200);"
        "llm.generate([[3] * 70], SamplingParams(max_tokens=3, temperature=1.0));"
        "sys.exit(sorted({'triton', 'torch._dynamo'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr
