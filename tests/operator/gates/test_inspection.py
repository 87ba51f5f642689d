"""The verdict's way: the pod's program, its termination message, what the operator reads out of Jobs and pods."""

import json
import math

import pytest
from headers_builder import write_checkpoint
from operator_builders import HUB_PAIR, NOW, UID, fits, make_job, make_model, make_pod, make_resource, observe, terminated
from released_pairs import TINY_TARGET_CONFIG, target_shapes

from paceline_compat import MetadataError, Verdict, inspect_pair
from paceline_compat import Problem as Broken
from paceline_operator import inspect
from paceline_operator.gates import caching, inspection
from paceline_operator.gates.judgement import field_of, judge
from paceline_operator.names import TERMINATION_LOG_BYTES
from paceline_operator.objects.cache import job_name as cache_job_name
from paceline_operator.objects.inspect import job_name
from paceline_operator.observed.observed import Observed
from paceline_operator.spec.model import parse

MODEL = make_model()
JOB = job_name(MODEL)
CACHED_MODEL = parse(make_resource({**HUB_PAIR, "cache": {"size": "1Gi"}}))
CACHE_JOB = cache_job_name(CACHED_MODEL)
GOOD = json.dumps({"outcome": "Compatible", "reason": "Compatible", "message": "fits", "model": {"blockSize": 8}})
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]}


def make_claim(made_at):
    """The cache claim as it was made at some time."""
    metadata = {"name": "demo-cache", "uid": f"claim-{made_at}", "creationTimestamp": made_at}
    metadata["ownerReferences"] = [{"kind": "SpeculativeModel", "name": "demo", "uid": UID}]
    return {"kind": "PersistentVolumeClaim", "metadata": metadata}


def broken(rule="draft.vocab_size", reason="VocabMismatch", field="draft.vocab_size", warning=False):
    return Broken(rule, reason, field, "5 is not 6", "use another draft", warning)


@pytest.mark.parametrize(
    "objects, reason, failed",
    [
        ([], "Inspecting", False),
        ([make_job(JOB)], "Inspecting", False),
        ([make_job(JOB), make_pod("a", "inspect", JOB, **UNSCHEDULABLE)], "InspectionUnschedulable", False),
        ([make_job(JOB), make_pod("a", "inspect", JOB, **terminated("hub is down", 1))], "InspectionRetrying", False),
        (
            [make_job(JOB, "Failed"), make_pod("a", "inspect", JOB, **terminated("hub is down", 1))],
            "InspectionFailed",
            True,
        ),
        ([make_job(JOB, "Failed", reason="DeadlineExceeded", message="too slow")], "InspectionFailed", True),
        ([make_job(JOB, "Complete")], "VerdictLost", True),
        ([make_job(JOB), make_pod("a", "inspect", JOB, **terminated("not json"))], "Inspecting", False),
        ([make_job(JOB), make_pod("a", "inspect", JOB, **terminated('{"outcome": "Maybe"}'))], "Inspecting", False),
        ([make_job("other"), make_pod("a", "inspect", "other", **terminated(GOOD))], "Inspecting", False),
    ],
)
def test_no_verdict_yet(objects, reason, failed):
    """Each way of not knowing has its reason; only a Job that gave up is tried anew."""
    found = inspection.read(MODEL, {}, observe(objects), NOW)

    assert (found.outcome, found.reason, found.failed_at is not None) == (inspection.PENDING, reason, failed)
    assert not found.may_serve


def test_verdict_is_read_from_a_pod():
    """One pod that ended well is enough, whatever others did before."""
    pods = [make_pod("a", "inspect", JOB, **terminated("x", 1)), make_pod("b", "inspect", JOB, **terminated(GOOD))]

    found = inspection.read(MODEL, {}, observe([make_job(JOB), *pods]), NOW)

    assert (found.outcome, found.message, found.facts) == ("Compatible", "fits", {"blockSize": 8})


def test_recorded_verdict_needs_no_job():
    """It lives in the status, under the key of what was inspected; another key is another question."""
    recorded = {"key": fits(MODEL).key, "outcome": "Incompatible", "reason": "VocabMismatch", "message": "5 is not 6"}

    known = inspection.read(MODEL, {"inspection": recorded}, Observed({}), NOW)
    other = inspection.read(make_model(speculation={"algorithm": "ngram"}), {"inspection": recorded}, Observed({}), NOW)

    assert (known.outcome, other.outcome) == ("Incompatible", inspection.PENDING)


def test_known_not_to_fit_beats_unknown():
    """Problems carry the spec's field paths and the remedy; warnings decide nothing."""
    verdict = Verdict("t", "d", (broken("target.metadata", "MetadataUnavailable", "target"), broken(), broken(warning=True)))

    found = judge(verdict)

    assert (found.outcome, found.reason) == ("Incompatible", "VocabMismatch")
    assert [str(problem) for problem in found.problems] == ["spec.draft.uri: 5 is not 6; use another draft"]
    assert judge(Verdict("t", "d", (broken(warning=True),))).outcome == "Compatible"
    assert judge(Verdict("t", "d", verdict.problems[:1])).outcome == "Unknown"


@pytest.mark.parametrize(
    "fact, field",
    [
        ("options.num_steps", "spec.speculation.numSteps"),
        ("options.tensor_parallel", "spec.resources.gpu.count"),
        ("target", "spec.target.uri"),
    ],
)
def test_facts_point_to_fields(fact, field):
    """A user reads about the resource, not about our tables."""
    assert field_of(fact) == field


def test_a_claim_that_is_not_filled_is_no_verdict(tmp_path):
    """The Job tries again; its words are the termination message."""
    log = tmp_path / "log"

    code = inspect.main(["--target", str(tmp_path / "nothing"), "--algorithm", "off"], log)

    assert code == 1
    assert "spec.target.uri" in log.read_text()
    assert "no such folder" in log.read_text()


def test_sources_that_cannot_be_read_in_place_are_unknown(tmp_path):
    """Object stores and registries: the runtime's own check decides."""
    log = tmp_path / "log"

    code = inspect.main(["--target", "s3://bucket/model"], log)

    assert (code, json.loads(log.read_text())["outcome"]) == (0, "Unknown")


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--num-gpus", "2"], "TensorParallelUnsupported"),
        (["--algorithm", "mtp", "--num-steps", "8"], "NumStepsInvalid"),
    ],
)
def test_options_are_judged_where_nothing_can_be_read(options, reason, tmp_path):
    """Else a pod holds two GPUs and works on one, or fails at its start on a node that it waited for."""
    log = tmp_path / "log"

    code = inspect.main(["--target", "s3://bucket/model", *options], log)
    verdict = json.loads(log.read_text())

    assert (code, verdict["outcome"], verdict["reason"]) == (0, "Incompatible", reason)


def test_a_checkpoint_that_is_no_checkpoint_does_not_fit(tmp_path):
    """Metadata that was read and makes no sense is a refusal."""
    (tmp_path / "config.json").write_text("{}")
    log = tmp_path / "log"

    code = inspect.main(["--target", str(tmp_path), "--algorithm", "off"], log)

    assert (code, json.loads(log.read_text())["outcome"]) == (0, "Incompatible")


@pytest.mark.parametrize("text", ["ä" * 9000, "x" * 5000, '"' * 5000, "short"])
def test_verdict_fits_into_a_termination_message(text):
    """4096 bytes hold any verdict; the outcome survives whatever the problems' length."""
    judgement = judge(Verdict("t", None, (Broken("r", "VocabMismatch", "target", text, ""),)))

    message = inspect.verdict_message(judgement, {"architecture": "llama"})

    assert len(message.encode()) <= TERMINATION_LOG_BYTES
    assert json.loads(message)["outcome"] == "Incompatible"
    assert json.loads(message)["message"].startswith(f"spec.target.uri: {text[:5]}")


def test_only_what_is_downloaded_counts_as_fetched(tmp_path):
    """The tensors' bytes of a remote checkpoint; a claim's are there already."""
    shapes = {name: ("BF16", shape) for name, shape in target_shapes(TINY_TARGET_CONFIG).items()}
    write_checkpoint(tmp_path, TINY_TARGET_CONFIG, shapes)
    target = inspect_pair(str(tmp_path), None).target
    num_bytes = sum(2 * math.prod(shape) for _, shape in shapes.values())

    assert inspect.fetched_bytes("https://host/model.gguf", target) == num_bytes
    assert (inspect.fetched_bytes(str(tmp_path), target), inspect.fetched_bytes("hf://org/name", None)) == (0, 0)


def test_what_a_checkpoint_says_of_itself_is_bounded(tmp_path):
    """A name as long as a file neither fills the message nor is refused by the status' schema."""
    folder, log = tmp_path / "target", tmp_path / "log"
    shapes = {name: ("BF16", shape) for name, shape in target_shapes(TINY_TARGET_CONFIG).items()}
    write_checkpoint(folder, {**TINY_TARGET_CONFIG, "architectures": ["X" * 9000]}, shapes)

    inspect.main(["--target", str(folder), "--algorithm", "off"], log)

    verdict = json.loads(log.read_text())
    assert (verdict["outcome"], verdict["model"]["architecture"]) == ("Incompatible", "X" * inspect.MAX_FACT)


@pytest.mark.parametrize(
    "place, revision", [("hf://org/name@v1%2F2/q.gguf", "v1/2"), ("hf://org/name", "main"), ("/models/x", "")]
)
def test_what_cannot_be_pinned_is_read_as_named(place, revision, monkeypatch):
    """Without a hub: the revision is the one that the place names, and reading it tells what is wrong."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)

    assert inspect.pinned(place) == (place, revision)


def test_a_draft_is_read_with_the_token_that_is_given_for_it(tmp_path, monkeypatch):
    """Both are read in one container, each by its own right."""
    tokens = {}

    def refuse(place, token=None):
        tokens[place] = token
        raise MetadataError(place, "is gated")

    monkeypatch.setattr(inspect, "pinned_location", refuse)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setenv("PACELINE_DRAFT_HF_TOKEN", "theirs")

    inspect.main(["--target", "hf://ours/target", "--draft", "hf://theirs/draft"], tmp_path / "log")

    assert tokens == {"hf://ours/target": None, "hf://theirs/draft": "theirs"}


@pytest.mark.parametrize(
    "model, status, objects, expected",
    [
        (MODEL, {}, [], (True, "OnClaim")),
        (parse(make_resource(HUB_PAIR)), {}, [], (True, "PerPod")),
        (CACHED_MODEL, {}, [], (False, "Fetching")),
        (CACHED_MODEL, {}, [make_claim("1"), make_job(CACHE_JOB, "Complete", made_at="2")], (True, "Cached")),
        (CACHED_MODEL, {}, [make_claim("3"), make_job(CACHE_JOB, "Complete", made_at="2")], (False, "ClaimLost")),
        (CACHED_MODEL, {}, [make_job(CACHE_JOB, "Complete", made_at="2")], (False, "ClaimLost")),
        (CACHED_MODEL, {}, [make_job(CACHE_JOB, "Failed", message="404")], (False, "FetchFailed")),
        (
            CACHED_MODEL,
            {},
            [make_job(CACHE_JOB), make_pod("a", "cache", CACHE_JOB, **UNSCHEDULABLE)],
            (False, "FetchUnschedulable"),
        ),
        (CACHED_MODEL, {}, [make_pod("a", "cache", CACHE_JOB, **UNSCHEDULABLE)], (False, "Fetching")),
    ],
)
def test_where_the_weights_are(model, status, objects, expected):
    """Serving waits for the cache, where there is one."""
    found = caching.read(model, status, observe(objects), NOW)

    assert (found.is_done, found.reason) == expected


def test_recorded_cache_is_believed_while_its_claim_exists():
    """A claim that was deleted by hand is filled again."""
    claim = make_claim("1")
    filled = observe([claim, make_job(CACHE_JOB, "Complete", made_at="1")])
    recorded = {"cache": {"key": caching.read(CACHED_MODEL, {}, filled, NOW).key}}

    assert caching.read(CACHED_MODEL, recorded, observe([claim]), NOW).is_done
    assert not caching.read(CACHED_MODEL, recorded, Observed({}), NOW).is_done
    assert not caching.read(CACHED_MODEL, recorded, observe([make_claim("3")]), NOW).is_done


def test_a_job_without_pods_names_what_may_refuse_them():
    """A quota's or a policy's refusal is in the Job's Events alone; a pod that runs needs no such hint."""
    for model, read, job, component in (
        (MODEL, inspection.read, JOB, "inspect"),
        (CACHED_MODEL, caching.read, CACHE_JOB, "cache"),
    ):
        refused = read(model, {}, observe([make_job(job)]), NOW).message
        running = read(model, {}, observe([make_job(job), make_pod("a", component, job)]), NOW).message

        assert f"kubectl describe job {job}" in refused
        assert "quota" not in running
