"""How far a Job has come: beside containers that never end, past its deadline, and when nothing of it starts."""

from datetime import timedelta

import pytest
from operator_builders import (
    CACHED,
    CONFIG,
    HUB_PAIR,
    NOW,
    UID,
    fits,
    make_job,
    make_model,
    make_pod,
    observe,
    terminated,
)

from paceline_operator.gates import caching, inspection
from paceline_operator.gates.attempts import FAILED, RETRYING, RUNNING, attempt
from paceline_operator.objects.cache import job_name as cache_job_name
from paceline_operator.objects.inspect import job_name
from paceline_operator.observed.warnings import Warning, Warnings
from paceline_operator.planning.desired import desired, inherit
from paceline_operator.planning.drift import Remainders
from paceline_operator.planning.plan import RETRY_S, plan

MODEL = make_model()
CACHED_MODEL = make_model(**HUB_PAIR, cache={"size": "1Gi"})
JOB, CACHE_JOB = job_name(MODEL), cache_job_name(CACHED_MODEL)
PROXY = {"name": "istio-proxy", "state": {"running": {}}}
GOOD = '{"outcome": "Compatible", "reason": "Compatible", "message": "fits"}'
FINISHED = (NOW - timedelta(seconds=30)).isoformat()


def ended(name, code=0, message=""):
    return {"name": name, "state": {"terminated": {"exitCode": code, "message": message, "finishedAt": FINISHED}}}


def meshed(job, *statuses):
    """A pod of a Job beside a proxy that goes on."""
    return make_pod("a", "inspect", job, phase="Running", containerStatuses=[PROXY, *statuses])


def plan_for(model, observed, verdict, cached, now=NOW):
    wanted = desired(model, CONFIG, inherit(model, {}, observed), frozenset())
    return plan(model, wanted, observed, verdict, cached, now, Remainders())


def test_a_verdict_beside_a_proxy_is_read_and_its_job_ended():
    """Once the verdict is on record, and not before."""
    observed = observe([make_job(JOB), meshed(JOB, ended("inspect", 0, GOOD))])
    read = inspection.read(MODEL, {}, observed, NOW)
    recorded = {"inspection": {"key": read.key, "outcome": read.outcome, "reason": "r", "message": "m"}}
    later = inspection.read(MODEL, recorded, observed, NOW)

    assert (read.outcome, read.is_left_over, later.is_left_over) == ("Compatible", False, True)
    assert [one["kind"] for one in plan_for(MODEL, observed, read, CACHED).delete] == []
    assert [one["kind"] for one in plan_for(MODEL, observed, later, CACHED).delete] == ["Job"]


def test_what_a_proxy_says_is_no_verdict():
    """Its termination message may look like one."""
    pod = make_pod("a", "inspect", JOB, containerStatuses=[ended("istio-proxy", 0, GOOD)])

    assert inspection.read(MODEL, {}, observe([make_job(JOB), pod]), NOW).outcome == inspection.PENDING


def test_a_failed_attempt_beside_a_proxy_is_tried_again():
    """Its pod never ends, so the Job cannot: another Job takes its place after the usual time."""
    observed = observe([make_job(JOB), meshed(JOB, ended("inspect", 1, "hub is down"))])
    read = inspection.read(MODEL, {}, observed, NOW)
    due = NOW + timedelta(seconds=RETRY_S)

    assert (read.reason, read.message, read.failed_at) == ("InspectionFailed", "inspect: exit code 1: hub is down", FINISHED)
    assert plan_for(MODEL, observed, read, CACHED).is_empty
    assert [one["kind"] for one in plan_for(MODEL, observed, read, CACHED, due).delete] == ["Job"]


@pytest.mark.parametrize(
    "statuses, reason",
    [
        ([ended("fetch-target"), ended("fetch-draft")], "Cached"),
        ([ended("fetch-target"), {"name": "fetch-draft", "state": {"running": {}}}], "Fetching"),
        ([ended("fetch-target")], "Fetching"),
        ([ended("fetch-target"), ended("fetch-draft", 3, "404")], "FetchFailed"),
    ],
)
def test_a_fetch_beside_a_proxy_is_done_when_both_sources_are(statuses, reason):
    """The claim is filled then, whatever the proxy does."""
    claim = {"name": "demo-cache", "uid": "c", "creationTimestamp": "2026-11-29T11:59:00Z"}
    claim["ownerReferences"] = [{"kind": "SpeculativeModel", "name": "demo", "uid": UID}]
    job = make_job(CACHE_JOB, made_at="2026-11-29T11:59:30Z")
    body = {"kind": "PersistentVolumeClaim", "metadata": claim, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
    observed = observe([body, job, meshed(CACHE_JOB, *statuses)])
    read = caching.read(CACHED_MODEL, {}, observed, NOW)

    assert read.reason == reason
    if read.is_done:
        later = caching.read(CACHED_MODEL, {"cache": {"key": read.key}}, observed, NOW)
        deleted = plan_for(CACHED_MODEL, observed, fits(CACHED_MODEL), later).delete
        assert [one["metadata"]["name"] for one in deleted] == [CACHE_JOB]


def test_a_deadline_tells_what_was_waited_for():
    """The Job controller deletes the pods; the condition still has their last word, once."""
    failed = make_job(JOB, "Failed", reason="DeadlineExceeded", message="too slow")
    before = {"type": "Compatible", "reason": "InspectionFailedMount", "message": "secret x not found"}
    first = inspection.read(MODEL, {"conditions": [before]}, observe([failed]), NOW)
    now_told = {"type": "Compatible", "reason": first.reason, "message": first.message}
    second = inspection.read(MODEL, {"conditions": [now_told]}, observe([failed]), NOW)

    assert first.message == second.message == "too slow; last: secret x not found"


def test_a_fetch_of_which_nothing_starts_fails_with_what_it_last_said():
    """After the stated time, and another Job takes its place."""
    job = make_job(CACHE_JOB, made_at="2026-11-29T11:45:00Z")
    (owned,) = observe([job]).children.values()
    warnings = Warnings({"uid-Job-" + CACHE_JOB: Warning("FailedCreate", "exceeded quota: full")})
    early = attempt(owned, [], warnings, {}, NOW - timedelta(seconds=1))
    late = attempt(owned, [], warnings, {}, NOW)

    assert (early.state, late.state) == ("FailedCreate", FAILED)
    assert late.message == f"nothing of Job {CACHE_JOB} has started for 15 minutes; last: Job {CACHE_JOB}: exceeded quota: full"
    assert late.failed_at == NOW.isoformat()


def test_a_pod_that_says_nothing_is_under_way():
    """Its image is large, and no warning is about it: that is no stall."""
    job = make_job(CACHE_JOB, made_at="2026-11-29T11:00:00Z")
    pod = make_pod("2026-11-29T11:00:00Z", "cache", CACHE_JOB, phase="Pending", containerStatuses=[])

    assert attempt(job, [pod], Warnings(), {}, NOW).state == RUNNING


def test_a_failed_try_is_told_while_the_job_goes_on():
    """Without a proxy the Job controller tries again by itself."""
    pod = make_pod("a", "inspect", JOB, phase="Failed", **terminated("hub is down", 1))

    assert attempt(make_job(JOB), [pod], Warnings(), {}, NOW).state == RETRYING
