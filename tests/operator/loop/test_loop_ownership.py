"""The running operator among objects of others that carry its labels: it deletes none, writes over none, believes none."""

import copy
import json

import pytest
from operator_builders import UID, make_model, make_pod, make_resource, terminated
from running_operator import SERVING, idle, reasons, served

from paceline_operator.cluster.kinds import BY_NAME, MODEL, POD
from paceline_operator.objects.common import labels
from paceline_operator.status.acceptance import Counters

OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "uid-theirs"}
EARLIER = {"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeModel", "name": "demo", "uid": "uid-0"}
MODEL_UID = "paceline.dev/model-uid"
CACHED = {"target": {"uri": "hf://org/target"}, "cache": {"size": "1Gi", "retain": True}}


def foreign(kind, name="demo", *owners, component="server", **body):
    """An object of somebody else's with all labels of a child of the model `demo`."""
    metadata = {"name": name, "namespace": "ml", "labels": labels(make_model(), component), "ownerReferences": list(owners)}
    return {"apiVersion": BY_NAME[kind].api_version, "kind": kind, "metadata": metadata, **body}


async def told(running):
    """The message of condition Progressing once children were refused."""
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")
    conditions = running.find("speculativemodels", "demo")["status"]["conditions"]
    return next(one["message"] for one in conditions if one["type"] == "Progressing")


@pytest.mark.parametrize("owners", [(), (OTHER,), (EARLIER,)], ids=["nobody's", "another object's", "an earlier model's"])
@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "Deployment"])
async def test_a_namesake_with_our_labels_is_left_alone(running, kind, owners):
    """It is named in the status, and served in its place nothing is."""
    theirs = foreign(kind, "demo", *owners, spec={"theirs": 1})
    await running.create(BY_NAME[kind], copy.deepcopy(theirs))
    await running.give_verdict()

    assert f"{kind} demo" in await told(running)
    await idle(running)
    found = running.find(BY_NAME[kind].plural, "demo")
    assert (theirs["spec"], theirs["metadata"]["labels"]) == (found["spec"], found["metadata"]["labels"])
    assert running.condition("Ready")[0] == "False"


@pytest.mark.parametrize("owners", [(), (OTHER,), (EARLIER,)], ids=["nobody's", "another object's", "an earlier model's"])
async def test_strays_with_our_labels_are_not_deleted(running, owners):
    """Of any watched kind: what the model did not ask for is not thereby the operator's to remove."""
    kinds = [kind for kind in BY_NAME.values() if not kind.is_optional and kind not in (MODEL, POD)]
    for kind in kinds:
        await running.create(kind, foreign(kind.kind, "stray", *owners))
    await served(running)
    await idle(running)

    assert all(running.find(kind.plural, "stray") for kind in kinds)
    assert not [write for write in running.server.writes if write[0] == "DELETE"]


async def test_a_verdict_of_others_is_not_believed(running):
    """A pod with the inspect Job's labels says what the operator waits for, and belongs to no Job of the model."""
    (job,) = await running.until(lambda: running.names("jobs"), "an inspect Job")
    message = json.dumps({"outcome": "Compatible", "reason": "Compatible", "message": "it fits"})
    pod = make_pod("stray", "inspect", job, **terminated(message))
    pod["metadata"] |= {"namespace": "ml", "labels": pod["metadata"]["labels"] | labels(make_model(), "inspect")}
    pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": job, "uid": "uid-of-another"}]
    await running.create(POD, {"apiVersion": "v1", **pod})
    await running.until(lambda: running.operator.store.known(POD), "the pod is seen")
    await idle(running)

    assert running.condition("Compatible") == ("Unknown", "Inspecting")
    assert not {plural for _, plural in running.server.writes} & SERVING


async def test_figures_of_others_are_not_read(running):
    """Anybody's pod may carry the labels of a serving one, and answer anything."""
    asked = []

    async def counters(pods):
        asked.extend(pods)
        return [Counters(1000, 900, 100) for _ in pods]

    running.operator.scraper.counters = counters
    await running.call("PATCH", MODEL, "demo", {"spec": {"speculation": {"algorithm": "ngram"}}})
    stray = foreign("Pod", "stray", OTHER, status={"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.9"})
    await running.create(POD, stray)
    await running.until(lambda: running.operator.store.known(POD), "the pod is seen")
    await served(running)
    running.operator.reconciler._sampled_at.clear()
    await running.call("PATCH", MODEL, "demo", {"metadata": {"labels": {"look": "again"}}})
    await running.until(lambda: running.operator.reconciler._sampled_at, "a look at the pods' figures")

    assert asked == []
    assert running.condition("AcceptanceHealthy") == ("Unknown", "TooFewTokens")


async def test_a_model_made_again_waits_for_the_earlier_ones_children(running):
    """They go with the earlier one: until then each is named, and then the model gets its own."""
    await served(running)
    await idle(running)
    await running.call("DELETE", MODEL, "demo")
    await running.until(lambda: running.operator.store.models() == {}, "the model is gone")
    resource = make_resource(uid="uid-2")
    await running.create(MODEL, resource)
    (job,) = running.names("jobs")

    assert f"Job {job} belongs to SpeculativeModel demo with uid {UID}" in await told(running)
    assert running.find("jobs", job)["metadata"]["ownerReferences"][0]["uid"] == UID
    await running.call("DELETE", POD, f"{job}-pod")
    for kind, name in (("Job", job), ("Service", "demo"), ("PodDisruptionBudget", "demo"), ("Deployment", "demo")):
        await running.call("DELETE", BY_NAME[kind], name)
    await running.until(lambda: running.names("jobs") == [job], "the Job of the new model")
    await served(running)
    children = [running.find(BY_NAME[kind].plural, "demo") for kind in ("Service", "PodDisruptionBudget", "Deployment")]
    assert [["uid-2"]] * 3 == [[owner["uid"] for owner in child["metadata"]["ownerReferences"]] for child in children]


async def retained_claim(running):
    """A claim that the model `demo` left behind, and a new model of that name, inspected."""
    left = foreign("PersistentVolumeClaim", "demo-cache", component="cache", spec={"volumeName": "full"})
    left["metadata"]["annotations"] = {MODEL_UID: "uid-0"}
    await running.create(BY_NAME["PersistentVolumeClaim"], left)


async def test_a_retained_claim_is_taken_over(running):
    """By a model of the same name that retains it too: it carries the new uid, and no owner."""
    await retained_claim(running)
    await running.call("PATCH", MODEL, "demo", {"metadata": {"generation": 4}, "spec": CACHED})
    await running.give_verdict()
    claim = await running.until(lambda: uid_of_claim(running) == UID and claim_of(running), "the claim is taken over")

    assert claim["spec"]["volumeName"] == "full"
    assert not claim["metadata"]["ownerReferences"]
    await running.until(lambda: [name for name in running.names("jobs") if "-cache-" in name], "the fetch")


async def test_a_retained_claim_is_not_taken_over_by_a_model_that_would_not_keep_it(running):
    """No pod is made that writes into it, and the status says what to do."""
    await retained_claim(running)
    spec = {**CACHED, "cache": {"size": "1Gi"}}
    await running.call("PATCH", MODEL, "demo", {"metadata": {"generation": 4}, "spec": spec})
    await running.give_verdict()

    assert "PersistentVolumeClaim demo-cache was retained by an earlier SpeculativeModel" in await told(running)
    assert uid_of_claim(running) == "uid-0"
    assert not [name for name in running.names("jobs") if "-cache-" in name]
    await running.until(lambda: "ApplyFailed" in reasons(running), "an Event")


def claim_of(running):
    return running.find("persistentvolumeclaims", "demo-cache")


def uid_of_claim(running):
    return claim_of(running)["metadata"]["annotations"][MODEL_UID]
