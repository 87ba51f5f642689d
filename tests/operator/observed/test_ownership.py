"""Whose an object is: a uid proves it, labels never do, whatever is decided by it."""

import copy

import pytest
from operator_builders import (
    CACHED,
    CONFIG,
    HUB_PAIR,
    NOW,
    UID,
    as_served,
    fits,
    make_job,
    make_model,
    make_pod,
    make_replica_set,
    observe,
    terminated,
)

from paceline_operator.cluster.kinds import CHILDREN
from paceline_operator.gates import inspection
from paceline_operator.names import ANNOTATION_MODEL_UID
from paceline_operator.objects.common import child, labels
from paceline_operator.objects.inspect import job_name
from paceline_operator.observed.ownership import is_child, why_not_ours
from paceline_operator.planning.desired import desired, inherit
from paceline_operator.planning.drift import Remainders
from paceline_operator.planning.plan import plan
from paceline_operator.status.status import Findings, status_of

VERDICT = '{"outcome": "Compatible", "reason": "Compatible", "message": "fits"}'
CLAIM = "PersistentVolumeClaim"
OTHERS = {
    "nobody's": [],
    "another object's": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": "other"}],
    "an earlier model's": [{"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeModel", "name": "demo", "uid": "uid-0"}],
}


def foreign(kind, name, owners):
    """An object with all labels of a child of the model `demo`, and owners of its own."""
    metadata = {"name": name, "namespace": "ml", "labels": labels(make_model(), "server"), "ownerReferences": owners}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def claim(retain=True, **spec):
    """The cache claim as it is applied."""
    model = make_model(**{**HUB_PAIR, "cache": {"size": "1Gi", "retain": retain}, **spec})
    return as_served(model).children[CLAIM, "demo-cache"]


def without_owner(found, **annotations):
    metadata = {**found["metadata"], "ownerReferences": [], "annotations": annotations}
    return {**found, "metadata": metadata}


def step_for(model, observed):
    wanted = desired(model, CONFIG, inherit(model, {}, observed), frozenset())
    return plan(model, wanted, observed, fits(model), CACHED, NOW, Remainders())


@pytest.mark.parametrize("owners", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
def test_labels_alone_make_no_child(kind, owners):
    """Of no kind: it is neither seen nor deleted, and nothing is applied over it."""
    stray, namesake = foreign(kind, "stray", owners), foreign(kind, "demo", owners)
    wanted = child(make_model(), "server", {"apiVersion": kind.api_version, "kind": kind.kind})
    observed = observe([*as_served(make_model()).children.values(), stray])

    assert observed.get(kind.kind, "stray") is None
    assert step_for(make_model(), observed).is_empty
    assert observe([namesake]).children == {}
    assert why_not_ours(namesake, wanted, UID)


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
def test_a_childs_own_children_are_not_the_models(kind):
    """KEDA's autoscaler is the ScaledObject's, and carries its labels and annotations."""
    owner = child(make_model(), "server", {"apiVersion": kind.api_version, "kind": kind.kind}, name="no-longer-asked-for")
    theirs = foreign(kind, "stray", [{"kind": kind.kind, "name": "demo", "uid": "uid-owner"}])
    theirs["metadata"]["annotations"] = owner["metadata"]["annotations"]
    owner["metadata"]["uid"] = "uid-owner"

    found = step_for(make_model(), observe([*as_served(make_model()).children.values(), owner, theirs]))

    assert ([one["metadata"]["name"] for one in found.delete], found.apply) == (["no-longer-asked-for"], ())


def test_a_childs_labels_may_be_gone():
    """Taking a label off is an edit like others: its owner proves it, and it is written back."""
    service = copy.deepcopy(as_served(make_model()).children["Service", "demo"])
    wanted = copy.deepcopy(service)
    service["metadata"]["labels"] = {}

    assert is_child(service, UID)
    assert why_not_ours(service, wanted, UID) == ""


def test_a_retained_claim_is_known_by_its_annotation():
    """It has no owner; the model's uid is in its place."""
    retained, owned = claim(), claim(retain=False)

    assert (is_child(retained, UID), is_child(owned, UID)) == (True, True)
    assert "ownerReferences" not in retained["metadata"]
    assert ANNOTATION_MODEL_UID not in owned["metadata"]["annotations"]
    assert not is_child(without_owner(retained), UID)


@pytest.mark.parametrize("kind", [kind for kind in CHILDREN if kind.kind != CLAIM], ids=lambda kind: kind.kind)
def test_the_annotation_proves_nothing_of_other_kinds(kind):
    """Annotations are copied as labels are; a claim with another owner is that owner's."""
    copied = foreign(kind, "demo", [])
    copied["metadata"]["annotations"] = {ANNOTATION_MODEL_UID: UID}
    owned = {**claim(), "metadata": {**claim()["metadata"], "ownerReferences": OTHERS["another object's"]}}

    assert (is_child(copied, UID), is_child(owned, UID)) == (False, False)


@pytest.mark.parametrize("retain, refused", [(True, ""), (False, "set spec.cache.retain to take it over")])
def test_a_retained_claim_passes_to_a_model_that_retains_it_too(retain, refused):
    """One that does not would take the claim along when it is deleted: what was to outlive its model would not."""
    left = without_owner(claim(), **{ANNOTATION_MODEL_UID: "uid-0"})
    why = why_not_ours(left, claim(retain), UID)

    assert refused in why
    assert bool(why) == (not retain)
    assert observe([left]).children == {}


def test_a_claim_of_nobody_is_not_taken_over():
    """Someone's data may be on it; the refusal says how it is handed over, and doing so works."""
    why = why_not_ours(without_owner(claim()), claim(), UID)

    assert f"hand it over by the annotation {ANNOTATION_MODEL_UID}: {UID}" in why
    assert why_not_ours(without_owner(claim(), **{ANNOTATION_MODEL_UID: UID}), claim(), UID) == ""


def test_a_refusal_names_the_model_that_owns():
    """After a model was deleted and made again, its children go by themselves."""
    kind = CHILDREN[0]
    why = why_not_ours(foreign(kind, "demo", OTHERS["an earlier model's"]), foreign(kind, "demo", []), UID)

    assert why == "belongs to SpeculativeModel demo with uid uid-0: it goes with that one, or has to be deleted"


UNOWNED = {"ownerReferences": []}
OLD_SET = {"ownerReferences": [{"kind": "ReplicaSet", "uid": "uid-of-an-earlier-set"}]}
UNSCHEDULED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]}


@pytest.mark.parametrize("owners", [UNOWNED, OLD_SET], ids=["nobody's", "an earlier Deployment's"])
def test_pods_count_by_the_deployment_that_made_them(owners):
    """A pod with the labels of a serving one is neither judged nor asked for its figures."""
    model, stray = make_model(), make_pod("a", **UNSCHEDULED)
    stray["metadata"] |= owners
    ours = make_pod("b", conditions=[{"type": "PodScheduled", "status": "True"}])
    observed = observe([*as_served(model).children.values(), make_replica_set(), stray, ours])
    status = status_of(model, {}, Findings(observed, fits(model), CACHED, {}), NOW)
    found = {one["type"]: one["reason"] for one in status["conditions"]}

    assert [pod["metadata"]["name"] for pod in observed.serving_pods] == ["b"]
    assert found["Scheduled"] == "Scheduled"


@pytest.mark.parametrize("owner", [None, {"kind": "Deployment", "uid": "other"}, {"kind": "Job", "uid": "uid-Deployment-demo"}])
def test_a_replica_set_of_others_proves_no_pod(owner):
    """It carries its pods' labels, and the Deployment's uid is what makes it the Deployment's."""
    replica_set = make_replica_set()
    replica_set["metadata"]["ownerReferences"] = [owner] if owner else []
    observed = observe([*as_served(make_model()).children.values(), replica_set, make_pod("a")])

    assert len(observed.serving_pods) == (owner is not None and owner["uid"] == "uid-Deployment-demo")


def test_a_verdict_is_believed_of_the_models_own_job_only():
    """A Job with its name and labels says nothing, nor a pod with the Job's."""
    model = make_model()
    name = job_name(model)
    told, job = make_pod("a", "inspect", name, **terminated(VERDICT)), make_job(name)
    namesake = {**job, "metadata": {**job["metadata"], "ownerReferences": OTHERS["an earlier model's"]}}
    stray = {**told, "metadata": {**told["metadata"], "ownerReferences": []}}

    for objects, outcome in (
        ([job, told], inspection.COMPATIBLE),
        ([namesake, told], inspection.PENDING),
        ([told], inspection.PENDING),
        ([job, stray], inspection.PENDING),
    ):
        assert inspection.read(model, {}, observe(objects), NOW).outcome == outcome
