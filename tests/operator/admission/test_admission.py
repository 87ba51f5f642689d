"""What the webhook denies, admits, and admits with a warning. The lookup is a fake; one test reads real headers over HTTP."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from operator_builders import HUB_PAIR, make_resource

from paceline_operator.admission.metadata import KNOWN_FOR_S, UNKNOWN_FOR_S, Metadata
from paceline_operator.admission.review import review
from paceline_operator.errors import Problem
from paceline_operator.gates.judgement import Judgement
from paceline_operator.spec.model import parse

FITS = Judgement("Compatible", "Compatible")
DOES_NOT = Judgement(
    "Incompatible", "VocabMismatch", (Problem("spec.draft.uri", "5 is not 6"), Problem("spec.speculation.numSteps", "use 7"))
)
UNKNOWN = Judgement("Unknown", "MetadataUnavailable", (Problem("spec.target.uri", "the hub is down"),))


async def reviewed(judgement, resource, old=None):
    """A review whose lookup gives `judgement`, or must not be asked when it is None."""

    async def lookup(model):
        assert judgement is not None, "the webhook may not look here"
        return judgement

    return await review(resource, old, lookup)


async def test_all_problems_of_a_pair_that_does_not_fit_deny():
    """Everything at once, each with its field."""
    found = await reviewed(DOES_NOT, make_resource(HUB_PAIR))

    assert found.message == "spec.draft.uri: 5 is not 6; spec.speculation.numSteps: use 7"


async def test_unknown_is_admitted_with_a_warning():
    """The hub's outage is not the user's mistake."""
    found = await reviewed(UNKNOWN, make_resource(HUB_PAIR))

    assert found.problems == ()
    assert "the hub is down" in found.warnings[0]


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"disruption": {"maxUnavailable": 0}}, "maxUnavailable is 0"),
        ({"disruption": {"minAvailable": 1}}, "minAvailable is 1 of 1 pods"),
        ({"disruption": {"minAvailable": 3}, "replicas": 2}, "minAvailable is 3 of 2 pods"),
        ({"disruption": {"minAvailable": 2}, "autoscaling": {"minReplicas": 2, "maxReplicas": 9}}, "minAvailable is 2 of 2"),
        ({"disruption": {"minAvailable": 1}, "replicas": 2}, ""),
        ({"disruption": {"minAvailable": 1}, "replicas": 0}, ""),
        ({"disruption": {"maxUnavailable": 1}}, ""),
        ({}, ""),
    ],
)
async def test_a_budget_that_never_lets_a_pod_go_gets_a_warning(spec, words):
    """It is admitted: somebody may want just that."""
    found = await reviewed(FITS, make_resource({**HUB_PAIR, **spec}))

    assert found.problems == ()
    assert len(found.warnings) == bool(words)
    assert words in "".join(found.warnings)


async def test_a_pair_that_fits_is_admitted_in_silence():
    """Nothing to say."""
    found = await reviewed(FITS, make_resource(HUB_PAIR))

    assert (found.problems, found.warnings) == ((), ())


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"target": {"uri": "pvc://models"}}, "is on a claim"),
        ({"target": {"uri": "s3://bucket/model"}}, "is read after it was fetched"),
        ({"target": {"uri": "hf://org/name", "secretRef": {"name": "hub"}}}, "needs a Secret"),
    ],
)
async def test_what_only_pods_can_read_is_left_to_the_inspect_job(spec, words):
    """The operator has no claims mounted and no right to read Secrets."""
    found = await reviewed(None, make_resource(spec))

    assert found.problems == ()
    assert words in found.warnings[0]


@pytest.mark.parametrize("uri", ["pvc://models", "s3://bucket/model", "oci://registry/model:1"])
async def test_options_that_never_work_are_denied_whatever_the_source(uri):
    """How many GPUs a pod may have does not depend on what only pods can read."""
    found = await reviewed(None, make_resource({"target": {"uri": uri}, "resources": {"gpu": {"count": 2}}}))

    assert [problem.path for problem in found.problems] == ["spec.resources.gpu.count"]
    assert "2 GPUs for one model are not served yet" in found.message


async def test_shape_problems_deny_without_a_lookup():
    """What is wrong by itself needs no headers."""
    found = await reviewed(None, make_resource({"target": {"uri": "ftp://x"}, "speculation": {"algorithm": "dflash"}}))

    assert [problem.path for problem in found.problems] == ["spec.target.uri", "spec.draft"]


async def test_edits_of_metadata_and_deletion_pass():
    """A label, or a finalizer's removal, never waits for a hub, whatever the spec says."""
    bad = make_resource({"target": {"uri": "ftp://x"}})
    deleted = make_resource({"target": {"uri": "ftp://x"}}, deletionTimestamp="2026-11-29T12:00:00Z")

    assert (await reviewed(None, bad, old=bad)).problems == ()
    assert (await reviewed(None, deleted, old=make_resource())).problems == ()


@pytest.fixture
def web(tmp_path) -> Iterator[str]:
    """A web server over an empty checkpoint folder tree."""
    (tmp_path / "org" / "target" / "resolve" / "main").mkdir(parents=True)
    (tmp_path / "org" / "target" / "resolve" / "main" / "config.json").write_text("{}")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_headers_are_read_over_http(web):
    """A real read: metadata that makes no sense is a known misfit."""
    model = parse(make_resource({"target": {"uri": "hf://org/target"}}))

    found = await Metadata(web, 5.0, lambda: 0.0).judge(model)

    assert (found.outcome, found.problems[0].path) == ("Incompatible", "spec.target.uri")


async def test_no_hub_configured_is_unknown():
    """And said so."""
    found = await Metadata("", 5.0, lambda: 0.0).judge(parse(make_resource(HUB_PAIR)))

    assert found.outcome == "Unknown"
    assert "HF_ENDPOINT" in found.message


async def test_a_lookup_that_takes_too_long_is_unknown(monkeypatch):
    """The budget bounds the review, not the reader's patience."""
    released = threading.Event()
    metadata = Metadata("http://hub", 0.01, lambda: 0.0)
    monkeypatch.setattr(metadata, "_read", lambda model: released.wait(5))

    found = await metadata.judge(parse(make_resource(HUB_PAIR)))
    released.set()

    assert (found.outcome, "within 0.01 s" in found.message) == ("Unknown", True)
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize("judgement, lifetime_s", [(FITS, KNOWN_FOR_S), (UNKNOWN, UNKNOWN_FOR_S)])
async def test_lookups_are_remembered(judgement, lifetime_s, monkeypatch):
    """A known pair for long, an unknown one briefly: a hub that returns is noticed."""
    now, reads = [0.0], []
    metadata = Metadata("http://hub", 1.0, lambda: now[0])
    monkeypatch.setattr(metadata, "_read", lambda model: reads.append(model) or judgement)
    model = parse(make_resource(HUB_PAIR))

    for now[0] in (0.0, lifetime_s - 1, lifetime_s + 1):
        await metadata.judge(model)

    assert len(reads) == 2
