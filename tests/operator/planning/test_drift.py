"""What is already so is not applied: differences, what an apply leaves of them, and claims that have grown."""

import copy

import pytest
from operator_builders import CACHED, CONFIG, HUB_PAIR, NOW, as_served, fits, make_job, make_model, observe

from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import PENDING, Inspection
from paceline_operator.objects.inspect import job_name
from paceline_operator.planning.desired import desired, inherit
from paceline_operator.planning.drift import Remainders, contains, differences
from paceline_operator.planning.plan import plan


def plan_for(model, observed, remainders, caching=CACHED, verdict=None):
    wanted = desired(model, CONFIG, inherit(model, {}, observed), frozenset())
    return plan(model, wanted, observed, verdict or fits(model), caching, NOW, remainders)


def with_policy(observed):
    """As policies of others leave what we apply: a proxy first, another pull policy, one toleration more, a label less."""
    observed = copy.deepcopy(observed)
    deployment = observed.children["Deployment", "demo"]
    pod = deployment["spec"]["template"]["spec"]
    pod["containers"] = [{"name": "proxy", "image": "mesh:1"}, {**pod["containers"][0], "imagePullPolicy": "Always"}]
    pod["tolerations"] = [*pod.get("tolerations", []), {"key": "theirs", "operator": "Exists"}]
    del deployment["metadata"]["labels"]["paceline.dev/component"]
    return observed


def test_what_a_policy_makes_of_a_document_is_applied_once():
    """One apply, whose answer still differs; then none, until somebody edits another field of ours or the document changes."""
    model = make_model(scheduling={"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    remainders, observed = Remainders(), with_policy(as_served(model))
    first = plan_for(model, observed, remainders)
    remainders.remember(first.apply[0], observed.get("Deployment", "demo"))
    second = plan_for(model, observed, remainders)
    edited = copy.deepcopy(observed)
    edited.children["Deployment", "demo"]["spec"]["replicas"] = 7
    third = plan_for(model, edited, remainders)
    changed = plan_for(make_model(scheduling={"nodeSelector": {"a": "b"}}), observed, remainders)

    kinds = [[child["kind"] for child in found.apply] for found in (first, second, third, changed)]
    assert kinds == [["Deployment"], [], ["Deployment"], ["Deployment"]]
    assert second.details == ()


def test_what_is_as_it_should_be_leaves_nothing_to_remember():
    """A policy that was taken away is not taken for one that acts."""
    model, remainders = make_model(), Remainders()
    document = plan_for(model, observe([]), remainders).apply[-1]
    remainders.remember(document, with_policy(as_served(model)).get("Deployment", "demo"))
    remainders.remember(document, document)

    assert [child["kind"] for child in plan_for(model, with_policy(as_served(model)), remainders).apply] == ["Deployment"]


@pytest.mark.parametrize("annotations, kinds", [({}, []), ({"paceline.dev/applied-hash": "other"}, ["Job"])])
def test_a_job_whose_hash_was_taken_off_is_not_replaced_for_ever(annotations, kinds):
    """Each new one would lose it too; one with another hash runs with other settings."""
    model = make_model()
    job = make_job(job_name(model))
    job["metadata"]["annotations"] = annotations
    verdict = Inspection("key", PENDING, "Inspecting", "")

    assert [found["kind"] for found in plan_for(model, observe([job]), Remainders(), verdict=verdict).delete] == kinds


@pytest.mark.parametrize("size, applied", [("1Gi", []), ("1024Mi", []), ("2Gi", []), ("900Mi", ["PersistentVolumeClaim"])])
def test_a_claim_that_is_larger_is_fine(size, applied):
    """Whoever let it grow; one that is smaller is asked to grow."""
    model = make_model(**HUB_PAIR, cache={"size": "1Gi"})
    observed = copy.deepcopy(as_served(model))
    observed.children["PersistentVolumeClaim", "demo-cache"]["spec"]["resources"]["requests"]["storage"] = size
    caching = Caching(True, "Cached", "", "key")

    assert [child["kind"] for child in plan_for(model, observed, Remainders(), caching).apply] == applied


def test_a_claim_that_has_grown_never_shrinks():
    """Another field of ours was edited: the apply that mends it carries the size that is there."""
    model = make_model(**HUB_PAIR, cache={"size": "1Gi"})
    observed = copy.deepcopy(as_served(model))
    claim = observed.children["PersistentVolumeClaim", "demo-cache"]
    claim["spec"]["resources"]["requests"]["storage"] = "3Gi"
    claim["metadata"]["labels"]["paceline.dev/component"] = "edited"
    (mended,) = plan_for(model, observed, Remainders(), Caching(True, "Cached", "", "key")).apply

    assert mended["spec"]["resources"]["requests"]["storage"] == "3Gi"
    assert mended["metadata"]["annotations"] == claim["metadata"]["annotations"]


def test_named_items_match_by_name():
    """An item of somebody else's before ours is no difference, and ours is found behind it; one that is gone is."""
    wanted = {"containers": [{"name": "server", "image": "a"}]}
    found = {"containers": [{"name": "proxy", "image": "x"}, {"name": "server", "image": "a"}]}

    assert contains(found, wanted)
    assert list(differences({"containers": found["containers"][:1]}, wanted)) == [
        (".containers[0].name", "null"),
        (".containers[0].image", "null"),
    ]


@pytest.mark.parametrize(
    "found, wanted, is_contained",
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({}, {"a": {}, "b": [], "c": "", "d": 0}, True),
        ({}, {"a": 1}, False),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, True),
        ({"name": "a1Gi"}, {"name": "a1024Mi"}, False),
    ],
)
def test_contains(found, wanted, is_contained):
    """Fields that we set are compared, empty ones count as absent."""
    assert contains(found, wanted) == is_contained
