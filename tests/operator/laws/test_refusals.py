"""Every refusal of a draft or a target, as a user meets it: denied at admission, or told by the inspect Job.

Checkpoints are written to disk with headers only, and served by a small web server that plays the hub. Both ways have to
say the same sentence about the same field.
"""

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from headers_builder import write_checkpoint
from operator_builders import NOW, make_job, make_pod, make_resource, observe, terminated
from released_pairs import TINY_TARGET_CONFIG, draft_shapes, target_shapes, tiny_draft_config

from paceline_compat import RULES
from paceline_operator import inspect
from paceline_operator.admission.metadata import Metadata
from paceline_operator.admission.review import review
from paceline_operator.gates import inspection
from paceline_operator.objects.inspect import job_name
from paceline_operator.spec.model import parse
from paceline_operator.status.status import compatible

# rule id -> what differs from a pair that fits: fields of the target's config, of the draft's, of the speculation.
BROKEN = {
    "target.architecture": ({"architectures": ["GPT2LMHeadModel"]}, {}, {}),
    "target.quantization": ({"quantization_config": {"quant_method": "fp8"}}, {}, {}),
    "target.rope": ({"rope_scaling": {"rope_type": "longrope"}}, {}, {}),
    "target.layer_types": ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, {}, {}),
    "draft.architecture": ({}, {"architectures": ["DFlashDraftModel"]}, {}),
    "draft.quantization": ({}, {"quantization_config": {"quant_method": "gptq"}}, {}),
    "draft.is_causal": ({}, {"is_causal": True}, {}),
    "draft.layer_types": ({}, {"layer_types": ["sliding_attention", "full_attention"]}, {}),
    "draft.sliding_window": ({}, {"sliding_window": None}, {}),
    "draft.rope": ({}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {}),
    "draft.rope_partial": ({}, {"partial_rotary_factor": 0.5}, {}),
    "draft.rope_layout": ({}, {"rope_interleaved": True}, {}),
    "draft.output_multiplier": ({}, {"output_multiplier": 0.5}, {}),
    "draft.input_embedding_scale": ({}, {"input_embedding_scale": 8}, {}),
    "draft.final_logit_softcapping": ({}, {"final_logit_softcapping": 30.0}, {}),
    "draft.layer_variant": ({}, {"hidden_act": "gelu"}, {}),
    "draft.selector_rank": ({}, {"selector_rank": 12}, {}),
    "draft.selector_top_k": ({}, {"selector_top_k": 10}, {}),
    "draft.head_dim": ({}, {"head_dim": 24}, {}),
    "draft.num_kv_heads": ({}, {"num_key_value_heads": 3}, {}),
    "draft.conv_kernel_size": ({}, {"conv_kernel_size": 0}, {}),
    "draft.conv_group_size": ({}, {"conv_group_size": 20}, {}),
    "draft.block_size": ({}, {"block_size": 1}, {}),
    "draft.target_layer_ids": ({}, {"target_layer_ids": [2, 2]}, {}),
    "draft.target_layer_range": ({}, {"target_layer_ids": [1, 4]}, {}),
    "draft.num_target_layers": ({}, {"num_target_layers": 5}, {}),
    "draft.hidden_size": ({}, {"hidden_size": 32}, {}),
    "draft.vocab_size": ({}, {"vocab_size": 128}, {}),
    "draft.mask_token_id": ({}, {"mask_token_id": 96}, {}),
    "draft.max_positions": ({}, {"max_position_embeddings": 256}, {}),
    "options.num_steps": ({}, {}, {"numSteps": 8}),
}
# Not refusals that a resource can meet: spec or CRD refuse them first, or they are warnings or GGUF's and tensors' own.
ELSEWHERE = {
    "options.algorithm",
    "options.cache_type",
    "options.max_model_len",
    "options.tensor_parallel",
    "target.gguf_architecture",
    "target.split",
    "target.tensor_type",
    "target.layer_variant",
    "target.gdn",
    "target.tensors",
    "target.mtp",
    "draft.missing",
    "draft.unused",
    "draft.codebooks",
    "draft.tensors",
    "draft.float16",
}


class Hub(BaseHTTPRequestHandler):
    """Files below `root` as a hub resolves them, by ranges; nothing is logged."""

    def __init__(self, *args, root: Path, **kwargs) -> None:
        self.root = root
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        path = self.root / self.path.lstrip("/").replace("/resolve/main/", "/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per case with `target` and `draft`, written when asked for."""
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def hub(checkpoints: Path) -> Iterator[str]:
    """The address of a hub over those folders."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, root=checkpoints))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def write_pair(folder: Path, target_changes: dict, draft_changes: dict) -> None:
    """A tiny pair, its tensors shaped as its configs say."""
    target = {**TINY_TARGET_CONFIG, **target_changes}
    draft = tiny_draft_config(**draft_changes)
    write_checkpoint(folder / "target", target, _tensors(target_shapes(TINY_TARGET_CONFIG)))
    write_checkpoint(folder / "draft", draft, _tensors(draft_shapes(tiny_draft_config(**_shaping(draft_changes)))))


def _tensors(shapes):
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def _shaping(changes):
    """The changes that shapes follow; others leave them as they are."""
    names = {"hidden_size", "vocab_size", "head_dim", "num_key_value_heads", "selector_rank", "conv_kernel_size"}
    return {name: value for name, value in changes.items() if name in {*names, "conv_group_size", "target_layer_ids"}}


def spec_of(case: str, speculation: dict) -> dict:
    return {
        "target": {"uri": f"hf://{case}/target"},
        "draft": {"uri": f"hf://{case}/draft"},
        "speculation": {"algorithm": "dflash", **speculation},
    }


def told_by_the_job(folder: Path, model, log: Path) -> tuple[str, str, str]:
    """Condition Compatible, after the Job's program ran on the folders as a pod would mount them."""
    line = ["--target", str(folder / "target"), "--draft", str(folder / "draft"), "--algorithm", "dflash"]
    depth = model.spec.speculation.depth
    assert inspect.main([*line, *(["--num-steps", str(depth)] if depth else [])], log) == 0
    name = job_name(model)
    pod = make_pod("a", "inspect", name, **terminated(log.read_text()))
    return tuple(compatible(inspection.read(model, {}, observe([make_job(name), pod]), NOW)))


def test_the_table_is_covered():
    """A new rule has to be tried here, or to be named as one that a resource cannot meet."""
    assert {rule.id for rule in RULES} == set(BROKEN) | ELSEWHERE


async def test_a_pair_that_fits_is_admitted_and_found_compatible(checkpoints, hub, tmp_path):
    """The base of every case below breaks nothing."""
    write_pair(checkpoints / "good", {}, {})
    resource = make_resource(spec_of("good", {"numSteps": 7}))

    decision = await review(resource, None, Metadata(hub, 10.0, lambda: 0.0).judge)

    assert (decision.problems, decision.warnings) == ((), ())
    assert told_by_the_job(checkpoints / "good", parse(resource), tmp_path / "log")[:2] == ("True", "Compatible")


@pytest.mark.parametrize("rule", BROKEN)
async def test_refused_at_admission_and_by_the_job_in_the_same_words(rule, checkpoints, hub, tmp_path):
    """Reason, field and remedy do not depend on who looked first."""
    target_changes, draft_changes, speculation = BROKEN[rule]
    case = rule.replace("_", "-")
    write_pair(checkpoints / case, target_changes, draft_changes)
    resource = make_resource(spec_of(case, speculation))
    reason = next(one.reason for one in RULES if one.id == rule)

    decision = await review(resource, None, Metadata(hub, 10.0, lambda: 0.0).judge)
    status, told_reason, message = told_by_the_job(checkpoints / case, parse(resource), tmp_path / "log")

    assert [problem.path for problem in decision.problems] == [_field(rule)]
    assert (status, told_reason) == ("False", reason)
    assert decision.message == message


def _field(rule):
    return {"options.num_steps": "spec.speculation.numSteps"}.get(rule, f"spec.{rule.partition('.')[0]}.uri")


def test_messages_are_json(tmp_path):
    """What the pod leaves is what the operator reads."""
    write_pair(tmp_path, {}, {"block_size": 1})
    line = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--algorithm", "dflash"]
    inspect.main(line, tmp_path / "log")

    assert json.loads((tmp_path / "log").read_text())["reason"] == "BlockSizeInvalid"
