"""The next step for a model, as a table of what is there against what should be."""

import copy
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from operator_builders import CACHED, CONFIG, HUB_PAIR, NOW, as_served, fits, make_job, make_model, observe

from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import INCOMPATIBLE, PENDING, UNKNOWN, Inspection
from paceline_operator.objects.inspect import job_name
from paceline_operator.observed.observed import Observed
from paceline_operator.planning.desired import desired, inherit
from paceline_operator.planning.drift import Remainders
from paceline_operator.planning.plan import RETRY_S, plan

PENDING_VERDICT = Inspection("key", PENDING, "Inspecting", "")
NOTHING = Observed({})
UNCACHED = Caching(False, "Fetching", "")
SERVING = ["Service", "PodDisruptionBudget", "Deployment"]


@dataclass(frozen=True)
class Case:
    """One row: what is known -> kinds that are applied and deleted."""

    name: str
    verdict: Inspection | None = None
    caching: Caching = CACHED
    spec: dict = field(default_factory=dict)
    observed: Observed = NOTHING
    apply: list = field(default_factory=list)
    delete: list = field(default_factory=list)


CASES = [
    Case("nothing known: inspect first, no pod that serves", PENDING_VERDICT, apply=["Job"]),
    Case("does not fit: nothing is made", Inspection("k", INCOMPATIBLE, "VocabMismatch", "")),
    Case("fits and cached: serve", apply=SERVING),
    Case("cannot be known: the runtime decides", Inspection("k", UNKNOWN, "MetadataUnavailable", ""), apply=SERVING),
    Case(
        "fits, not cached: claim and Job only",
        caching=UNCACHED,
        spec={**HUB_PAIR, "cache": {"size": "1Gi"}},
        apply=["PersistentVolumeClaim", "Job"],
    ),
    Case(
        "cached: the claim stays applied, its Job is not made again",
        caching=Caching(True, "Cached", "", "key"),
        spec={**HUB_PAIR, "cache": {"size": "1Gi"}},
        apply=["PersistentVolumeClaim", *SERVING],
    ),
    Case("all there: nothing to do", observed=as_served(make_model())),
    Case("paused: nothing is touched", PENDING_VERDICT, spec={"paused": True}),
    Case(
        "no longer asked for: removed",
        observed=as_served(make_model(networkPolicy={"enabled": True})),
        delete=["NetworkPolicy"],
    ),
    Case(
        "an old Job of other sources: removed",
        observed=observe([*as_served(make_model()).children.values(), make_job("demo-inspect-000000000000")]),
        delete=["Job"],
    ),
    Case(
        "changed to something that does not fit: what serves goes on",
        Inspection("k", INCOMPATIBLE, "VocabMismatch", ""),
        spec={"replicas": 3},
        observed=as_served(make_model()),
    ),
    Case("one field changed: one child applied", spec={"replicas": 3}, observed=as_served(make_model()), apply=["Deployment"]),
]


def plan_for(model, observed, verdict=None, caching=CACHED, now=NOW, remainders=None):
    wanted = desired(model, CONFIG, inherit(model, {}, observed), frozenset())
    return plan(model, wanted, observed, verdict or fits(model), caching, now, remainders or Remainders())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_next_step(case):
    """What is applied and deleted, in order."""
    found = plan_for(make_model(**case.spec), case.observed, case.verdict, case.caching)

    assert [child["kind"] for child in found.apply] == case.apply
    assert [child["kind"] for child in found.delete] == case.delete


@pytest.mark.parametrize(
    "kind, path, value",
    [
        ("Deployment", ["spec", "replicas"], 9),
        ("Deployment", ["spec", "template", "spec", "containers", 0, "image"], "evil:1"),
        ("Service", ["spec", "ports", 0, "port"], 1),
        ("PodDisruptionBudget", ["spec", "maxUnavailable"], 5),
        ("Service", ["metadata", "labels", "paceline.dev/component"], "other"),
    ],
)
def test_edit_by_hand_is_corrected(kind, path, value):
    """Whatever field of ours is changed, that child is applied again."""
    observed = copy.deepcopy(as_served(make_model()))
    place = observed.children[kind, "demo"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    assert [child["kind"] for child in plan_for(make_model(), observed).apply] == [kind]


def test_what_the_server_and_others_add_is_no_drift():
    """Defaults, a sidecar's annotation and rewritten quantities cause no apply, so there is no loop."""
    observed = copy.deepcopy(as_served(make_model()))
    deployment = observed.children["Deployment", "demo"]
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["resources"]["requests"]["cpu"] = "2000m"
    del deployment["spec"]["minReadySeconds"]

    assert plan_for(make_model(), observed).is_empty


def test_other_selector_means_a_new_deployment():
    """A selector cannot change: the Deployment goes first, and is made anew when it is gone."""
    observed = copy.deepcopy(as_served(make_model()))
    deployment = observed.children["Deployment", "demo"]
    deployment["spec"]["selector"]["matchLabels"]["version"] = "1"
    # As an earlier version of the operator applied it.
    deployment["metadata"]["annotations"]["paceline.dev/applied-hash"] = "earlier"

    found = plan_for(make_model(), observed)

    assert (list(found.apply), [child["kind"] for child in found.delete]) == ([], ["Deployment"])


def test_failed_job_is_tried_anew_after_a_while():
    """Not at once, not never, and without anybody's help."""
    model = make_model()
    job = make_job(job_name(model), "Failed")
    verdict = Inspection("key", PENDING, "InspectionFailed", "no such folder", failed_at="2026-11-29T12:00:00Z")

    early = plan_for(model, observe([job]), verdict, now=NOW + timedelta(seconds=20))
    late = plan_for(model, observe([job]), verdict, now=NOW + timedelta(seconds=RETRY_S + 1))

    assert (early.is_empty, early.look_again_s) == (True, RETRY_S - 20)
    assert [found["kind"] for found in late.delete] == ["Job"]


def test_the_earlier_of_two_failed_jobs_sets_the_next_look():
    """A fetch that failed later must not put off the next inspection."""
    model = make_model(**HUB_PAIR, cache={"size": "1Gi"})
    verdict = Inspection("key", PENDING, "InspectionFailed", "", failed_at="2026-11-29T12:00:00Z")
    fetch = Caching(False, "FetchFailed", "", failed_at="2026-11-29T12:01:00Z")

    assert plan_for(model, NOTHING, verdict, fetch, now=NOW).look_again_s == RETRY_S


def test_a_job_is_never_applied_over():
    """Its template cannot change: one that runs with other settings is replaced, one that ended is left alone."""
    model = make_model(scheduling={"nodeSelector": {"a": "b"}})
    (job,) = plan_for(model, Observed({}), PENDING_VERDICT).apply
    other = {**job, "metadata": {**job["metadata"], "annotations": {"paceline.dev/applied-hash": "other"}}}
    ended = {**other, "status": make_job("x", "Complete")["status"]}

    assert plan_for(model, observe([job]), PENDING_VERDICT).is_empty
    assert [found["kind"] for found in plan_for(model, observe([other]), PENDING_VERDICT).delete] == ["Job"]
    assert plan_for(model, observe([ended]), PENDING_VERDICT).is_empty


def test_a_claim_without_owner_is_kept():
    """`cache.retain` took the owner off: removing the cache leaves the claim."""
    model = make_model(**HUB_PAIR, cache={"size": "1Gi", "retain": True})
    observed = as_served(model)

    assert ("PersistentVolumeClaim", "demo-cache") in observed.children
    assert [found["kind"] for found in plan_for(make_model(**HUB_PAIR), observed).delete] == ["Job"]
