"""Draft checkpoints as they are found in the field, and as an adversary would write them."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from dflash_pairs import TableTarget, draft_content, oracle_draft, write_draft
from safetensors.torch import load_file, save_file

from paceline_compat import read_draft
from paceline_compat.errors import MetadataError
from paceline_compat.rules.pair import default_num_drafts
from paceline_kernels.backend import Backend
from paceline_kernels.grouped_conv import grouped_conv
from paceline_runtime.speculative.dflash import draft_layer
from paceline_runtime.speculative.dflash.load import DraftMisfitError, draft_dtype, load_proposer
from paceline_runtime.speculative.dflash.proposer import DFlashProposer
from paceline_runtime.speculative.dflash.self_check import SelfCheckError

CPU = torch.device("cpu")
CODEBOOK = "candidate_selector.predecessor_codebook"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good draft for the table target."""
    content = draft_content()
    write_draft(tmp_path / "draft", oracle_draft(content, dtype=torch.float32), content)
    return tmp_path / "draft"


def load(folder: Path, num_steps: int | None = None, dtype: torch.dtype = torch.float32) -> DFlashProposer:
    """As the engine loads it."""
    facts = read_draft(str(folder))
    steps = default_num_drafts("dflash", facts) if num_steps is None else num_steps
    return load_proposer(facts, TableTarget(48, 96, dtype), steps, dtype, CPU, 512)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a draft."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def reconfigure(folder: Path, **changes: object) -> None:
    """Change the config of a draft; DFlash fields go into `dflash_config`."""
    content = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        (content["dflash_config"] if name in content["dflash_config"] else content)[name] = value
    (folder / "config.json").write_text(json.dumps(content))


def rename(tensors: dict[str, torch.Tensor], new_name: Callable[[str], str]) -> None:
    """Store every tensor under another name."""
    renamed = {new_name(name): tensors.pop(name) for name in list(tensors)}
    tensors.update(renamed)


@pytest.mark.parametrize(
    "new_name",
    [
        pytest.param(lambda name: f"model.{name}", id="model-prefix"),
        pytest.param(lambda name: name + ".weight" * name.endswith("codebook"), id="codebook-weight"),
        pytest.param(lambda name: f"model.{name}" + ".weight" * name.endswith("codebook"), id="both"),
    ],
)
def test_names_of_conversions_load_the_same_weights(folder: Path, new_name: Callable[[str], str]) -> None:
    """A `model.` prefix and a `.weight` behind the codebooks change nothing."""
    plain = load(folder).draft
    rewrite(folder, lambda tensors: rename(tensors, new_name))

    converted = load(folder).draft

    assert torch.equal(converted.codebooks.predecessor, plain.codebooks.predecessor)
    down = [draft.parameters.places["layers.1.mlp.down_proj.weight"].view for draft in (converted, plain)]
    assert torch.equal(*down)


def test_both_spellings_of_a_codebook_are_refused(folder: Path) -> None:
    """Neither may win silently."""
    rewrite(folder, lambda tensors: tensors.update({f"{CODEBOOK}.weight": torch.zeros(96, 16)}))

    with pytest.raises(MetadataError, match="two spellings"):
        load(folder)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("config_dtype", [None, "float16"])
def test_dtype_is_the_engines_whatever_the_file_says(folder: Path, stored: torch.dtype, config_dtype: str | None) -> None:
    """On a CPU the engine's; `torch_dtype` and the stored dtype do not matter."""
    rewrite(folder, lambda tensors: tensors.update({name: t.to(stored) for name, t in tensors.items()}))
    reconfigure(folder, torch_dtype=config_dtype)

    assert load(folder, dtype=torch.float64).draft.dtype == torch.float64


def test_float16_is_never_a_drafts_dtype() -> None:
    """bfloat16 on a GPU whatever the engine's dtype, and instead of float16 anywhere."""
    assert draft_dtype(torch.float16, torch.device("cuda")) == torch.bfloat16
    assert draft_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16
    assert draft_dtype(torch.float16, CPU) == torch.bfloat16
    assert draft_dtype(torch.float32, CPU) == torch.float32


def test_dflash_config_wins_over_the_top_level(folder: Path) -> None:
    """A top-level block size of 16 beside a nested 8 means 8; a field at the top level alone is read there."""
    content = json.loads((folder / "config.json").read_text())
    content |= {"block_size": 16, "mask_token_id": content["dflash_config"].pop("mask_token_id")}
    (folder / "config.json").write_text(json.dumps(content))

    proposer = load(folder)

    assert proposer.num_drafts == 7
    assert proposer.draft.config.mask_token_id == 95


def test_every_wrong_tensor_is_named(folder: Path) -> None:
    """Missing, unknown and misshapen tensors are one message."""

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["layers.0.mlp.down_proj.weight"], tensors[CODEBOOK]
        tensors["lm_head.weight"] = torch.zeros(96, 48)
        tensors["norm.weight"] = torch.zeros(47)
        tensors["fc.weight"] = torch.zeros(144, 48)

    rewrite(folder, damage)

    with pytest.raises(MetadataError, match="lm_head") as caught:
        load(folder)

    for name in (
        "layers.0.mlp.down_proj.weight",
        CODEBOOK,
        "lm_head.weight",
        "norm.weight is [47] and must be [48]",
        "fc.weight is [144, 48]",
    ):
        assert name in str(caught.value)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder: Path, value: float) -> None:
    """Every broken tensor is listed."""
    rewrite(folder, lambda tensors: (tensors["fc.weight"][3, 5:6].fill_(value), tensors[CODEBOOK][95, 15:].fill_(value)))

    with pytest.raises(MetadataError, match=rf"fc\.weight.*{CODEBOOK}|{CODEBOOK}.*fc\.weight"):
        load(folder)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"target_layer_ids": [1, -1, 6]}, "target_layer_ids"),
        ({"target_layer_ids": [1, 3, 3]}, "target_layer_ids"),
        ({"target_layer_ids": []}, "target_layer_ids"),
        ({"target_layer_ids": [1, 3, 8]}, "target_layer_ids"),
        ({"mask_token_id": 96}, "mask_token_id"),
        ({"mask_token_id": -1}, "mask_token_id"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"is_causal": True}, "is_causal"),
        ({"block_size": 1}, "block_size"),
        ({"conv_group_size": 5}, "conv_group_size"),
        ({"selector_top_k": 0}, "selector_top_k"),
        ({"vocab_size": 97}, "vocab_size"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers"),
        ({"hidden_size": "48"}, "hidden_size"),
        ({"output_multiplier": 2.0}, "output_multiplier"),
    ],
)
def test_config_that_cannot_be_served_is_refused_by_field(folder: Path, changes: dict[str, object], field: str) -> None:
    """One error that names the field, before any tensor is read."""
    reconfigure(folder, **changes)

    with pytest.raises((DraftMisfitError, MetadataError), match=field):
        load(folder)


def test_kernels_that_differ_from_the_references_fail_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check runs at every load."""

    def broken(x: torch.Tensor, *rest: torch.Tensor, backend: Backend) -> torch.Tensor:
        return x if backend is Backend.AUTO else grouped_conv(x, *rest, backend=backend)

    monkeypatch.setattr(draft_layer, "grouped_conv", broken)

    with pytest.raises(SelfCheckError):
        load(folder)


def test_load_reports_the_self_check(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log says how near the two paths are."""
    with caplog.at_level("INFO"):
        load(folder)

    assert "7 of 7 drafts equal" in caplog.text


@pytest.mark.parametrize("num_steps", [0, 8, -1])
def test_depth_outside_the_block_is_refused(folder: Path, num_steps: int) -> None:
    """k is 1 to block_size - 1."""
    with pytest.raises(DraftMisfitError, match="num_steps"):
        load(folder, num_steps)


def write_header(folder: Path, header: dict[str, object], data: bytes = b"", length: int | None = None) -> None:
    """A hand-made safetensors file; `length` is what it claims for its header."""
    text = json.dumps(header).encode()
    length = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + text + data)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda f: truncate(f / "model.safetensors"), id="truncated"),
        pytest.param(lambda f: write_header(f, {}, length=2**63), id="huge-header"),
        pytest.param(lambda f: write_header(f, tensor([2**40, 2**20], 0, 2**60)), id="huge-tensor"),
        pytest.param(lambda f: write_header(f, tensor([2**31, 2**31], 0, 8), b"\0" * 8), id="lying-shape"),
        pytest.param(lambda f: write_header(f, tensor([2], -4, 4), b"\0" * 8), id="negative-offset"),
        pytest.param(lambda f: (f / "model.safetensors").write_bytes(b"\0" * 7), id="too-short"),
        pytest.param(lambda f: (f / "model.safetensors").unlink(), id="no-file"),
        pytest.param(lambda f: (f / "config.json").write_text("[" * 100_000), id="nested-json"),
        pytest.param(lambda f: (f / "config.json").unlink(), id="no-config"),
        pytest.param(lambda f: reconfigure(f, hidden_size=2**39, num_attention_heads=2**30), id="huge-config"),
        pytest.param(lambda f: reconfigure(f, num_hidden_layers=4096, layer_types=["sliding_attention"] * 4096), id="layers"),
    ],
)
def test_damaged_files_are_refused_in_bounded_memory(folder: Path, damage: Callable[[Path], object]) -> None:
    """What a header claims is held against the file before anything of that size exists."""
    damage(folder)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\w"):
            load(folder)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 64 << 20


def truncate(path: Path) -> None:
    """Cut the last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


def tensor(shape: list[int], begin: int, end: int) -> dict[str, object]:
    """A header of one tensor."""
    return {"fc.weight": {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}}
