"""Conditions out of what is seen, as a table; `now` is an argument."""

from dataclasses import replace
from datetime import timedelta

import pytest
from operator_builders import CACHED, NOW, as_served, deployment_status, fits, make_model, make_pod, make_replica_set, observe

from paceline_operator import names
from paceline_operator.errors import Problem
from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import INCOMPATIBLE, PENDING, UNKNOWN, Inspection
from paceline_operator.observed.observed import Observed
from paceline_operator.status import acceptance
from paceline_operator.status.acceptance import Counters, parse_counters, status_fields
from paceline_operator.status.status import Findings, changes, status_of, status_of_invalid

INSUFFICIENT = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
UNBOUND = 'persistentvolumeclaim "models" not found'
# Of a node that came back before its device plugin: the pod stays, another one takes its place.
REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed: no healthy devices"}
PULLING = {"containerStatuses": [{"name": "server", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": INSUFFICIENT}]}
SCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "True"}]}


def served_with(status, pods=(), **spec):
    """A served model whose Deployment has this status."""
    observed = as_served(make_model(**spec))
    observed.children["Deployment", "demo"]["status"] = status
    return observe([*observed.children.values(), make_replica_set(), *pods])


def status_for(observed, model=None, verdict=None, caching=CACHED, previous=None, now=NOW, trouble="", accepted=None):
    model = model or make_model()
    found = Findings(observed, verdict or fits(model), caching, accepted or {}, trouble)
    return status_of(model, previous or {}, found, now)


def conditions(status):
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


ONE_READY = deployment_status(1)
NONE_READY = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
ROLLING = {**ONE_READY, "updatedReplicas": 0}
CRASHING = {
    "containerStatuses": [
        {
            "name": "server",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"message": "--model: no such folder"}},
        }
    ]
}


@pytest.mark.parametrize(
    "observed, expected",
    [
        (Observed({}), {"Scheduled": ("Unknown", "NotDeployed"), "Ready": ("False", "NotDeployed")}),
        (served_with(ONE_READY), {"Available": ("True", "PodsAvailable"), "Ready": ("True", "Serving")}),
        (served_with(NONE_READY), {"Available": ("False", "Loading"), "Ready": ("False", "Loading")}),
        (served_with(ROLLING), {"Progressing": ("True", "RollingOut"), "Ready": ("True", "Updating")}),
        (
            served_with({**ONE_READY, "observedGeneration": 0}),
            {"Progressing": ("True", "RollingOut"), "Ready": ("True", "Updating")},
        ),
        (
            served_with(NONE_READY, [make_pod("a", **UNSCHEDULED)]),
            {"Scheduled": ("False", "InsufficientGPU"), "Available": ("False", "Unschedulable")},
        ),
        (
            served_with(NONE_READY, [make_pod("a", conditions=[{**UNSCHEDULED["conditions"][0], "message": UNBOUND}])]),
            {"Scheduled": ("False", "ClaimUnbound"), "Ready": ("False", "Unschedulable")},
        ),
        (
            served_with(NONE_READY, [make_pod("a", **SCHEDULED, **PULLING)]),
            {"Available": ("False", "ImagePullBackOff"), "Ready": ("False", "ImagePullBackOff")},
        ),
        (served_with(NONE_READY, [make_pod("a", **SCHEDULED, **REJECTED)]), {"Available": ("False", "PodFailed")}),
        (
            served_with(NONE_READY, [make_pod("a", **SCHEDULED, **REJECTED), make_pod("b", **SCHEDULED)]),
            {"Available": ("False", "Loading"), "Ready": ("False", "Loading")},
        ),
        (
            served_with(ONE_READY, [make_pod("a", **SCHEDULED, **REJECTED), make_pod("b", **SCHEDULED)]),
            {"Scheduled": ("True", "Scheduled"), "Ready": ("True", "Serving")},
        ),
        (
            served_with(NONE_READY, [make_pod("a", **SCHEDULED, **CRASHING)]),
            {"Scheduled": ("True", "Scheduled"), "Available": ("False", "CrashLoopBackOff")},
        ),
        (
            served_with(
                {
                    **NONE_READY,
                    "conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}],
                }
            ),
            {"Progressing": ("False", "ProgressDeadlineExceeded")},
        ),
        (
            served_with(
                {
                    "observedGeneration": 1,
                    "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}],
                }
            ),
            {"Progressing": ("False", "FailedCreate"), "Ready": ("False", "FailedCreate")},
        ),
    ],
)
def test_what_is_seen_decides(observed, expected):
    """Deployment and pods make the conditions, never a count alone."""
    found = conditions(status_for(observed))

    assert {name: found[name] for name in expected} == expected


def test_no_pod_available_is_not_available_even_if_the_deployment_says_so():
    """With one replica and maxUnavailable 1 a Deployment calls itself available at none."""
    claims = {**NONE_READY, "conditions": [{"type": "Available", "status": "True"}]}

    assert conditions(status_for(served_with(claims)))["Ready"][0] == "False"


def test_a_crashing_pods_last_words_are_shown():
    """The reason is in `kubectl get`, not only in a pod's log."""
    found = status_for(served_with(NONE_READY, [make_pod("a", **SCHEDULED, **CRASHING)]))
    ready = next(one for one in found["conditions"] if one["type"] == "Ready")

    assert "--model: no such folder" in ready["message"]


@pytest.mark.parametrize(
    "verdict, compatible",
    [
        (Inspection("k", PENDING, "Inspecting", "reading"), ("Unknown", "Inspecting")),
        (Inspection("k", INCOMPATIBLE, "VocabMismatch", "5 is not 6"), ("False", "VocabMismatch")),
        (Inspection("k", UNKNOWN, "MetadataUnavailable", "s3"), ("Unknown", "MetadataUnavailable")),
    ],
)
def test_verdict_is_the_condition(verdict, compatible):
    """Reason and text are the table's, and Ready repeats them while they keep pods from being made."""
    found = conditions(status_for(Observed({}), verdict=verdict))

    assert found["Compatible"] == compatible
    assert found["Ready"] == ("False", "NotDeployed" if verdict.may_serve else compatible[1])


def test_an_incompatible_change_is_not_ready_though_old_pods_serve():
    """What is asked for is not what answers."""
    verdict = Inspection("k", INCOMPATIBLE, "VocabMismatch", "5 is not 6")

    found = conditions(status_for(served_with(ONE_READY), verdict=verdict))

    assert found["Available"][0] == "True"
    assert found["Ready"] == ("False", "VocabMismatch")


@pytest.mark.parametrize(
    "verdict, caching, progressing",
    [
        (Inspection("k", PENDING, "Inspecting", "reading"), CACHED, ("True", "Preparing")),
        (None, Caching(False, "Fetching", "fetching"), ("True", "Preparing")),
        (Inspection("k", INCOMPATIBLE, "VocabMismatch", "5 is not 6"), CACHED, ("False", "Blocked")),
    ],
)
@pytest.mark.parametrize("observed", [Observed({}), served_with(ONE_READY)], ids=["new", "served"])
def test_old_pods_are_not_taken_for_what_is_asked_for(verdict, caching, progressing, observed):
    """A change that is still looked at, or was refused, has not settled, however settled the Deployment is."""
    found = conditions(status_for(observed, verdict=verdict, caching=caching))

    assert found["Progressing"] == progressing
    assert found["Ready"] != ("True", "Serving")


def test_metadata_that_cannot_be_had_does_not_hide_a_serving_model():
    """Compatible stays Unknown, Ready is what the endpoint is."""
    verdict = Inspection("k", UNKNOWN, "MetadataUnavailable", "s3")

    assert conditions(status_for(served_with(ONE_READY), verdict=verdict))["Ready"] == ("True", "Serving")


def test_every_condition_is_set_from_the_first_visit():
    """In order, with a reason that is never empty and the generation that it is about."""
    found = status_for(Observed({}))["conditions"]

    assert [one["type"] for one in found] == list(names.CONDITIONS)
    assert all(one["reason"] and one["message"] and one["observedGeneration"] == 3 for one in found)


def test_transition_time_moves_with_the_status_only():
    """Looking again an hour later changes nothing that did not change."""
    first = status_for(served_with(NONE_READY))
    again = status_for(served_with(NONE_READY), previous=first, now=NOW + timedelta(hours=1))
    later = status_for(served_with(ONE_READY), previous=again, now=NOW + timedelta(hours=2))
    times = {one["type"]: one["lastTransitionTime"] for one in later["conditions"]}

    assert again == first
    assert (times["Accepted"], times["Available"]) == ("2026-11-29T12:00:00Z", "2026-11-29T14:00:00Z")


def test_events_are_about_changes_only():
    """The same status twice says nothing the second time."""
    first = status_for(served_with(NONE_READY))
    second = status_for(served_with(ONE_READY), previous=first)

    assert {change.type for change in changes(first, second)} == {"Available", "Progressing", "Ready"} - {
        "Progressing" if conditions(first)["Progressing"] == conditions(second)["Progressing"] else ""
    }
    assert changes(second, second) == []


def test_selector_and_counts_serve_the_scale_subresource():
    """An autoscaler finds the pods by status.selector."""
    found = status_for(served_with(deployment_status(2), replicas=2), make_model(replicas=2))

    assert found["selector"] == "paceline.dev/model=demo,paceline.dev/component=server"
    assert (found["replicas"], found["readyReplicas"], found["updatedReplicas"]) == (2, 2, 2)
    assert found["endpoint"] == "http://demo.ml.svc:8000/v1"


def test_trouble_with_a_child_and_pausing_are_told():
    """Both are in Progressing, and neither pretends that the endpoint is gone."""
    refused = conditions(status_for(served_with(ONE_READY), trouble="the API server refuses a child"))
    paused = conditions(status_for(served_with(ONE_READY, paused=True), make_model(paused=True)))

    assert (refused["Progressing"], refused["Ready"][0]) == (("False", "ApplyFailed"), "True")
    assert (paused["Progressing"], paused["Ready"][0]) == (("False", "Paused"), "True")


def test_pods_without_their_service_are_not_ready():
    """Its name is taken, or a quota refuses it: pods answer, and nothing at `status.endpoint` does."""
    observed = served_with(ONE_READY)
    del observed.children["Service", "demo"]
    found = conditions(status_for(observed, trouble="Service demo exists"))

    assert (found["Available"][0], found["Ready"]) == ("True", ("False", "NoService"))


def test_weights_that_are_not_there_keep_it_from_being_ready():
    """The fetch's own words are the reason."""
    found = conditions(status_for(Observed({}), caching=Caching(False, "FetchFailed", "404")))

    assert found["Ready"] == ("False", "FetchFailed")


def test_an_invalid_resource_says_so_and_keeps_what_is_known():
    """What serves is left and counted, conditions become unknown, and all problems are in the message."""
    problems, before = [Problem("spec.a", "x"), Problem("spec.b", "y")], status_for(served_with(ONE_READY))
    counts = []
    for seen in (ONE_READY, NONE_READY):
        after = status_of_invalid(problems, before, served_with(seen).get("Deployment", "demo"), 4, NOW)
        counts.append((after["replicas"], after["readyReplicas"]))

    assert conditions(after)["Accepted"] == ("False", "Invalid")
    assert counts == [(1, 1), (1, 0)]
    assert after["endpoint"] == before["endpoint"]
    assert "spec.a: x; spec.b: y" in after["conditions"][0]["message"]


EXPOSITION = """# HELP paceline_spec_drafted_tokens_total Draft tokens proposed
paceline_spec_drafted_tokens_total{position="0"} 100.0
paceline_spec_drafted_tokens_total{position="1 of 2"} 100.0
paceline_spec_accepted_tokens_total{position="0"} 60
paceline_spec_steps_total 100.0
paceline_spec_drafted_tokens_created 1.7e+09
"""


def test_counters_are_added_up_over_labels():
    """Positions of a draft are parts of one count; other names are not."""
    assert parse_counters(EXPOSITION) == Counters(drafted=200, accepted=60, steps=100)


def test_acceptance_of_all_pods_together():
    """Rates of sums, not means of rates; nothing changes while nothing new is drafted."""
    fields = status_fields([Counters(200, 60, 100), Counters(100, 90, 50)], {}, NOW)

    assert fields == {"rate": "0.500", "tokensPerStep": "2.00", "draftedTokens": 300, "sampledAt": "2026-11-29T12:00:00Z"}
    assert status_fields([Counters(300, 150, 150)], fields, NOW + timedelta(hours=1)) == fields
    assert status_fields([], fields, NOW) == fields


def test_pods_that_drafted_nothing_yet_are_not_judged_by_their_forerunners():
    """The draft that was replaced for fitting badly is forgotten with its pods."""
    bad = status_fields([Counters(1000, 0, 500)], {}, NOW)

    assert status_fields([Counters()], bad, NOW) == {}


@pytest.mark.parametrize(
    "algorithm, counters, expected",
    [
        ("off", Counters(), ("True", "SpeculationOff")),
        ("dflash", Counters(), ("Unknown", "TooFewTokens")),
        ("dflash", Counters(100, 0, 50), ("Unknown", "TooFewTokens")),
        ("dflash", Counters(1000, 0, 500), ("False", "AcceptanceCollapsed")),
        ("dflash", Counters(1000, 400, 500), ("True", "Measured")),
    ],
)
def test_acceptance_is_judged(algorithm, counters, expected):
    """A draft that loads and accepts nothing is found, once there is enough to judge by."""
    assert acceptance.verdict(algorithm, status_fields([counters], {}, NOW))[:2] == expected


def test_the_verdict_is_recorded_with_its_key():
    """Later reconciles need neither Job nor pod to know it."""
    verdict = replace(fits(make_model()), facts={"blockSize": 8})

    found = status_for(served_with(ONE_READY), verdict=verdict)

    assert (found["inspection"]["outcome"], found["model"]) == ("Compatible", {"blockSize": 8})
