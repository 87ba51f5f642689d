"""`paceline check` and `paceline plan` as a user and the inspect Job run them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from headers_builder import write_checkpoint
from released_pairs import (
    QWEN_27B,
    TINY_DRAFT_CONFIG,
    TINY_TARGET_CONFIG,
    draft_shapes,
    target_shapes,
    tiny_draft_config,
)

from paceline_compat.__main__ import main

HEAVY = ("torch", "numpy", "transformers", "safetensors", "gguf", "triton")


def bf16(shapes):
    return {name: ("BF16", shape) for name, shape in shapes.items()}


@pytest.fixture
def tiny_pair(tmp_path) -> tuple[str, str]:
    target = write_checkpoint(tmp_path / "target", TINY_TARGET_CONFIG, bf16(target_shapes(TINY_TARGET_CONFIG)))
    draft = write_checkpoint(tmp_path / "draft", TINY_DRAFT_CONFIG, bf16(draft_shapes(TINY_DRAFT_CONFIG)))
    return str(target), str(draft)


def run(capsys, *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().out


def test_check_says_that_a_pair_fits(tiny_pair, capsys):
    target, draft = tiny_pair
    code, out = run(capsys, "check", "--target", target, "--draft", draft)
    assert (code, out) == (0, f"{draft} on {target}: fits\n")


def test_check_lists_every_problem_with_its_remedy(tiny_pair, capsys):
    target, draft = tiny_pair
    (Path(draft) / "config.json").write_text(json.dumps(tiny_draft_config(is_causal=True, num_target_layers=9)))
    code, out = run(capsys, "check", "--target", target, "--draft", draft, "--speculative-num-steps", "12")
    assert code == 1
    assert "options.num_steps: 12 is not between 1 and 7; use at most 7" in out
    assert "draft.is_causal: is true" in out
    assert "made for 9 layers, and the target has 4" in out


def test_check_in_json_is_the_verdict(tiny_pair, capsys):
    code, out = run(capsys, "check", "--target", tiny_pair[0], "--json", "--speculative-algorithm", "mtp")
    data = json.loads(out)
    assert (code, data["fits"], data["reason"]) == (1, False, "MtpHeadMissing")
    code, out = run(capsys, "check", "--target", tiny_pair[0], "--json")
    assert (code, json.loads(out)["reason"]) == (0, "Compatible")


def test_an_unreadable_checkpoint_has_its_own_exit_code(tiny_pair, capsys, tmp_path):
    code, out = run(capsys, "check", "--target", str(tmp_path / "none"), "--draft", tiny_pair[1])
    assert code == 2
    assert "no such folder" in out
    code, out = run(capsys, "check", "--target", "", "--draft", "")
    assert (code, out.count("location: is empty")) == (2, 2)
    code, out = run(capsys, "check", "--target", f"{tiny_pair[0]}/config.json")
    assert (code, "is a file, not a folder; name a checkpoint folder" in out) == (2, True)
    code, out = run(capsys, "plan", "--model", str(tmp_path), "--memory", "1GiB")
    assert code == 2
    assert "holds no config.json" in out


def test_plan_shows_the_table_and_its_exit_code(tiny_pair, capsys):
    target, draft = tiny_pair
    code, out = run(capsys, "plan", "--model", target, "--draft", draft, "--memory", "2GiB")
    assert code == 0
    assert "draft rings" in out
    assert "64 pages, 4096 tokens" in out
    code, out = run(capsys, "plan", "--model", target, "--memory", "1MiB", "--json")
    assert code == 1
    assert json.loads(out)["short_bytes"] > 512 << 20


def test_plan_refuses_a_pair_that_does_not_fit(tiny_pair, capsys):
    arguments = ("plan", "--model", tiny_pair[0], "--draft", tiny_pair[1], "--memory", "2GiB")
    code, out = run(capsys, *arguments, "--speculative-num-steps", "9")
    assert code == 1
    assert "9 is not between 1 and 7" in out


def test_plan_refuses_sizes_that_are_none_and_a_share_of_one_by_flag_and_all_at_once(tiny_pair, capsys):
    sizes = ["--memory", "plenty", "--memory-ratio", "0.5", "--graph-pool", "H100"]
    assert main(["plan", "--model", tiny_pair[0], *sizes]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for part in ("--memory: 'plenty' is neither a size", "--graph-pool: 'H100' is a device", "--memory-ratio is a share of"):
        assert f"paceline plan: {part}" in err


def test_a_graph_pool_is_told_no_device_it_would_then_refuse(tiny_pair, capsys):
    assert main(["plan", "--model", tiny_pair[0], "--memory", "1GiB", "--graph-pool", "-1"]) == 2
    assert "--graph-pool: '-1' is not a size" in capsys.readouterr().err


@pytest.mark.parametrize("slots, named", [("7", "at least twice --max-running-requests"), ("8", "keeps no recurrent states")])
def test_plan_refuses_state_slots_as_serve_does(tiny_pair, slots, named, capsys):
    assert main(["plan", "--model", tiny_pair[0], "--memory", "1GiB", "--num-state-slots", slots]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--memory-ratio", "0"],
        ["--num-pages", "0"],
        ["--dtype", "int8"],
        ["--max-prefill-tokens", "63"],
        ["--timeout-s", "nan"],
    ],
)
def test_plan_refuses_numbers_out_of_range(tiny_pair, arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--model", tiny_pair[0], "--memory", "1GiB", *arguments])
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_a_released_pair_is_checked_in_a_blink_without_torch(tmp_path, record_property):
    """A process of its own, files of their true size: prints the milliseconds, and no heavy package was imported."""
    target = write_checkpoint(tmp_path / "t", QWEN_27B.target_config, bf16(target_shapes(QWEN_27B.target_config, True)))
    draft = write_checkpoint(tmp_path / "d", QWEN_27B.draft_config, bf16(draft_shapes(QWEN_27B.draft_config)))
    script = (
        "import sys; from paceline_compat.__main__ import main; "
        f"code = main(['check', '--target', {str(target)!r}, '--draft', {str(draft)!r}]); "
        f"print([name for name in {HEAVY!r} if name in sys.modules]); sys.exit(code)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    wall_ms = 1e3 * (time.perf_counter() - start)
    record_property("check_wall_ms", round(wall_ms, 1))
    print(f"paceline check on a 27B pair: {wall_ms:.0f} ms wall, interpreter included")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith(": fits")
    assert done.stdout.splitlines()[1] == "[]"


def test_the_package_imports_only_itself_msgspec_and_the_standard_library():
    """msgspec takes typing_extensions where it is installed."""
    modules = ", ".join(f"paceline_compat{room}" for room in ("", ".commands.check", ".commands.plan", ".places.http_source"))
    script = (
        f"import sys; before = set(sys.modules); import {modules}; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) - {"typing_extensions"} == {"msgspec", "paceline_compat"}
