"""`paceline draft init`: what it writes fits the target and is loaded by us and by the `dflash` package alike."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from dflash.model import DFlash2DraftModel
from dflash_pairs import Harness, OracleRun, TableTarget
from tiny_models import save_tiny

from paceline_compat.facts.checkpoint import read_draft, read_target
from paceline_compat.rules.pair import default_num_drafts
from paceline_compat.rules.table import check
from paceline_runtime.speculative.dflash import init
from paceline_runtime.speculative.dflash.init import spread_taps
from paceline_runtime.speculative.dflash.load import load_proposer


def run_init(*flags: str) -> int:
    """The command with the flags of a shell."""
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    return init.run(parser.parse_args(flags))


def test_help_says_what_is_chosen_for_you() -> None:
    """Nobody knows a draft's sizes by heart."""
    parser = argparse.ArgumentParser()
    init.add_arguments(parser)
    optional = [action for action in parser._actions if not action.required and action.dest != "help"]

    assert [action.dest for action in optional if "(default: " not in (action.help or "")] == []


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 target of 6 layers."""
    return save_tiny("qwen3", tmp_path_factory.mktemp("target"), num_hidden_layers=6)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param([], id="defaults"),
        pytest.param(["--layers", "3", "--taps", "4", "--block-size", "4", "--window", "16"], id="one-tap"),
        pytest.param(["--layers", "1", "--taps", "0,1,3,4", "--mask-token-id", "7", "--dtype", "bfloat16"], id="bfloat16"),
    ],
)
@torch.no_grad()
def test_written_draft_drafts_the_same_here_and_in_the_package(target: Path, tmp_path: Path, flags: list[str]) -> None:
    """Both load the folder and draft the same path from the same context."""
    out = tmp_path / "draft"
    assert run_init("--target", str(target), "--out", str(out), "--dtype", "float32", "--seed", "3", *flags) == 0
    assert check(read_target(str(target)), read_draft(str(out))).errors == ()

    table = TableTarget(64, 512, num_layers=6)
    facts = read_draft(str(out))
    proposer = load_proposer(facts, table, default_num_drafts("dflash", facts), torch.float64, torch.device("cpu"), 512)
    harness = Harness(proposer.draft, table, proposer.num_drafts)
    features = torch.randn(40, len(proposer.draft.config.target_layer_ids), 64, dtype=torch.float64)
    harness.prefill(1, range(1, 3), 0, features)

    oracle = DFlash2DraftModel.from_pretrained(out, dtype=torch.float64).eval()
    _, path, candidates, _ = OracleRun(oracle, table).propose(features, 9, 40, proposer.num_drafts)

    ours = harness.propose(1, 9, 40)
    assert ours.tokens.tolist() == path.tolist()
    assert ours.candidates.sort(-1).values.tolist() == candidates.sort(-1).values.tolist()


def test_draft_of_a_tiny_vocabulary_has_no_more_candidates_than_tokens(tmp_path: Path) -> None:
    """The largest power of two that the vocabulary holds, at most 16."""
    path = save_tiny("llama", tmp_path, vocab_size=12, num_hidden_layers=2, eos_token_id=None)

    assert run_init("--target", str(path), "--out", str(tmp_path / "draft")) == 0
    assert read_draft(str(tmp_path / "draft")).selector_top_k == 8


def test_same_seed_writes_the_same_draft(target: Path, tmp_path: Path) -> None:
    """The file is a function of target, sizes and seed."""
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert run_init("--target", str(target), "--out", str(tmp_path / name), "--seed", seed) == 0

    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_codebooks_are_written_as_released(target: Path, tmp_path: Path) -> None:
    """Without `.weight`, and DFlash values under `dflash_config`."""
    run_init("--target", str(target), "--out", str(tmp_path / "draft"))

    names = {info.name for info in read_draft(str(tmp_path / "draft")).tensors.values()}
    assert {"candidate_selector.predecessor_codebook", "candidate_selector.successor_codebook"} <= names
    assert json.loads((tmp_path / "draft/config.json").read_text())["dflash_config"]["block_size"] == 8


@pytest.mark.parametrize(
    "flags, field",
    [
        (["--taps", "1,1"], "draft.target_layer_ids"),
        (["--taps", "6"], "draft.target_layer_ids"),
        (["--block-size", "1"], "draft.block_size"),
        (["--selector-rank", "24"], "draft.selector_rank"),
        (["--mask-token-id", "512"], "draft.mask_token_id"),
        (["--window", "1"], "draft.sliding_window"),
    ],
)
def test_misfit_is_refused_by_name_before_anything_is_written(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], field: str
) -> None:
    """Exit status 2, the field on stderr, no folder."""
    assert run_init("--target", str(target), "--out", str(tmp_path / "draft"), *flags) == 2

    assert field in capsys.readouterr().err
    assert not (tmp_path / "draft").exists()


def test_full_folder_is_left_alone(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint is never overwritten."""
    (tmp_path / "config.json").write_text("{}")

    assert run_init("--target", str(target), "--out", str(tmp_path)) == 2
    assert "not empty" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == "{}"


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4, 5, 40, 64])
def test_taps_are_layers_of_the_target(num_layers: int) -> None:
    """Ascending, different and inside, however few layers the target has."""
    for num_taps in range(1, 9):
        taps = spread_taps(num_layers, num_taps)
        assert taps == tuple(sorted(set(taps)))
        assert taps[0] >= 0
        assert taps[-1] < num_layers
    assert spread_taps(64, 5) == (1, 16, 30, 45, 60)
