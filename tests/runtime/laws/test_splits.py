"""What shards will divide is said where a linear layer is declared, for every family, the MTP head and the draft."""

import pytest
import torch
from dflash_pairs import draft_content
from mtp_models import save_with_mtp
from tiny_models import save_tiny

from paceline_compat import draft_facts, read_target
from paceline_compat.facts.families import SERVED_FAMILIES
from paceline_compat.facts.records import WholeDraft
from paceline_kernels.backend import Backend
from paceline_runtime.layers.parameters import Parameters
from paceline_runtime.models.registry import build_model
from paceline_runtime.speculative.dflash.draft import Draft
from paceline_runtime.speculative.mtp.head import MtpHead

DIVIDED = {
    "rows": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "columns": ("o_proj", "down_proj", "out_proj"),
}
WHOLE = ("mlp.gate", "shared_expert_gate", "fc", "kernel_projection", "hidden_projection")


class Recorder(Parameters):
    """Memory of no size, and the split of every linear layer that was declared over it."""

    def __init__(self, *, interleaves: bool = False) -> None:
        super().__init__(torch.float32, torch.device("meta"))
        self.splits: dict[str, str | None] = {}
        self._interleaves = interleaves

    def interleaves(self, first, second):
        """As on a GPU, or as elsewhere."""
        return self._interleaves

    def linear(self, parts, columns, *, split, bias=False):
        self.splits |= dict.fromkeys(parts, split)
        made = super().linear(parts, columns, split=split, bias=bias)
        assert split == made.split == made.rows(0, 1).split
        return made

    def interleaved(self, first, second, rows, columns, *, split, bias=False):
        self.splits |= {first: split, second: split}
        made = super().interleaved(first, second, rows, columns, split=split, bias=bias)
        assert split == made.split
        return made


def assert_declared(splits):
    """Outputs in front of what is computed head by head or value by value, inputs behind it."""
    expected = {name: split for split, ends in DIVIDED.items() for name in splits if name.endswith(ends)}
    expected |= {name: None for name in splits if name.endswith(WHOLE)}
    assert expected == splits


def build(path, *, interleaves=False):
    recorder = Recorder(interleaves=interleaves)
    return build_model(read_target(str(path)), recorder), recorder


@pytest.mark.parametrize("interleaves", [False, True])
@pytest.mark.parametrize("family", SERVED_FAMILIES)
def test_a_family_says_what_is_divided(tmp_path, family, interleaves):
    _, recorder = build(save_tiny(family, tmp_path), interleaves=interleaves)
    assert len(recorder.splits) > 20
    assert_declared(recorder.splits)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_head_says_what_is_divided(tmp_path, family):
    target, _ = build(save_with_mtp(family, tmp_path).path)
    recorder = Recorder()
    MtpHead(target, recorder)
    assert "mtp.fc" in recorder.splits
    assert_declared(recorder.splits)


def test_the_draft_says_what_is_divided():
    recorder = Recorder()
    Draft(WholeDraft.of(draft_facts("draft", draft_content(), {})), recorder, Backend.REFERENCE)
    assert {"layers.1.self_attn.v_proj", "layers.1.mlp_conv.kernel_projection"} <= recorder.splits.keys()
    assert_declared(recorder.splits)
