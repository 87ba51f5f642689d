"""Which children a model gets: golden documents, and the laws that they keep."""

import ast
import re
from dataclasses import replace

import operator_golden
import pytest
import yaml
from operator_builders import CONFIG, HUB_PAIR, make_model, make_resource, observe
from source_tree import nodes

from paceline_operator.objects.common import stamped
from paceline_operator.objects.deployment import Inherited
from paceline_operator.planning.desired import chosen_image, desired, inherit
from paceline_operator.spec.model import parse

ALL_KINDS = operator_golden.KINDS


def deployment_of(model, config=CONFIG, inherited=Inherited()):
    found = desired(model, config, inherited, ALL_KINDS)
    return next(child for child in found.serving if child["kind"] == "Deployment")


@pytest.mark.parametrize("case", operator_golden.CASES)
def test_children_are_the_golden_ones(case):
    """A change in any field of any child shows in a reviewed file."""
    expected = list(yaml.safe_load_all(operator_golden.path(case).read_text()))

    assert operator_golden.children(case) == expected


@pytest.mark.parametrize("case", operator_golden.CASES)
def test_building_twice_gives_the_same_bytes(case):
    """Builders depend on nothing but their arguments."""
    assert operator_golden.children(case) == operator_golden.children(case)


def test_another_operator_version_changes_no_pod_template():
    """An upgraded operator with other default images restarts no model that runs."""
    model = make_model()
    before = deployment_of(model)
    upgraded = replace(CONFIG, operator_image="paceline/operator:2", runtime_image="paceline/runtime:2", pod_name="z")

    after = deployment_of(model, upgraded, inherit(model, recorded(model, before), observe([before])))

    assert after == before


def test_an_image_that_is_no_longer_named_gives_way_to_the_default():
    """What the Deployment runs is not asked: removing runtime.image, or an edit by hand, would stay for ever."""
    named, plain = make_model(runtime={"image": "mine:2"}), make_model()
    before = deployment_of(named)

    after = deployment_of(plain, inherited=inherit(plain, recorded(named, before), observe([before])))

    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == CONFIG.runtime_image


def recorded(model, deployment):
    """The status that a look at this Deployment leaves."""
    return chosen_image(model, CONFIG, Inherited(), observe([deployment]))


def test_a_named_image_wins_over_the_inherited_one():
    """Setting runtime.image is how one moves to another version."""
    model = make_model(runtime={"image": "mine:2"})

    after = deployment_of(model, inherited=Inherited(image="old:1"))

    assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:2"


def test_replicas_are_left_to_the_autoscaler():
    """The document does not own `replicas`, so an apply cannot undo a scaling."""
    model = make_model(autoscaling={"maxReplicas": 4})

    assert "replicas" not in deployment_of(model)["spec"]


def test_replicas_are_kept_until_the_autoscaler_has_written_them():
    """Handing over from a fixed count does not fall back to one pod in between."""
    fixed = deployment_of(make_model(replicas=3))
    fixed["metadata"]["managedFields"] = [
        {"manager": "paceline-operator", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]
    model = make_model(autoscaling={"maxReplicas": 4})

    kept = inherit(model, {}, observe([fixed]))
    fixed["metadata"]["managedFields"] = [{"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    released = inherit(model, {}, observe([fixed]))

    assert deployment_of(model, inherited=kept)["spec"]["replicas"] == 3
    assert "replicas" not in deployment_of(model, inherited=released)["spec"]


@pytest.mark.parametrize("manager", ["paceline-operator", "keda-operator"])
@pytest.mark.parametrize(
    "autoscaling, replicas",
    [
        ({"maxReplicas": 4}, 1),
        ({"minReplicas": 2, "maxReplicas": 4}, 2),
    ],
)
def test_an_autoscaler_is_not_left_at_zero(manager, autoscaling, replicas):
    """Whoever scaled to 0 before: it would stay there for ever, as if switched off."""
    stopped = deployment_of(make_model(replicas=0))
    stopped["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    model = make_model(autoscaling=autoscaling)

    assert deployment_of(model, inherited=inherit(model, {}, observe([stopped])))["spec"]["replicas"] == replicas


@pytest.mark.parametrize(
    "pod, is_counted",
    [("demo-7d4b9c6f5d-x2x4z", True), ("demo-two-7d4b9c6f5d-x2x4z", False), ("demo-inspect-0f3a-x2x4z", False)],
)
def test_a_model_is_scaled_by_the_load_of_its_own_pods(pod, is_counted):
    """Another model's name may begin like this one's."""
    keda = {"prometheusAddress": "http://prometheus:9090"}
    model = make_model(autoscaling={"maxReplicas": 4, "keda": keda})
    (scaled,) = [one for one in desired(model, CONFIG, Inherited(), ALL_KINDS).serving if one["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]

    assert bool(re.fullmatch(query.partition('pod=~"')[2].partition('"')[0], pod)) == is_counted


def test_selector_is_two_labels_without_a_version():
    """A Deployment's selector is immutable, so it may never say more."""
    selector = deployment_of(make_model())["spec"]["selector"]["matchLabels"]

    assert selector == {"paceline.dev/model": "demo", "paceline.dev/component": "server"}


def test_grace_period_covers_pre_stop_and_drain():
    """Streams that run when a pod is told to stop get their whole drain time."""
    pod = deployment_of(make_model(drain={"seconds": 100}))["spec"]["template"]["spec"]
    pre_stop_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])

    assert pod["terminationGracePeriodSeconds"] > pre_stop_s + 100
    assert pod["containers"][0]["args"][pod["containers"][0]["args"].index("--drain-timeout-s") + 1] == "100"


@pytest.mark.parametrize("startup_s, ready_s", [(10, 3600), (1800, 3600), (86400, 0)])
def test_a_rollout_may_take_a_start_and_the_time_that_pods_must_be_ready(startup_s, ready_s):
    """The API server refuses a deadline that is not longer than minReadySeconds."""
    spec = deployment_of(make_model(startupTimeoutSeconds=startup_s, rollout={"minReadySeconds": ready_s}))["spec"]

    assert spec["progressDeadlineSeconds"] > startup_s + ready_s


def test_startup_budget_is_the_startup_probe():
    """No other probe looks before the budget is spent, and none waits an initial delay."""
    container = deployment_of(make_model(startupTimeoutSeconds=600))["spec"]["template"]["spec"]["containers"][0]
    probe = container["startupProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] == 600
    assert not [name for name in container if "Probe" in name and "initialDelaySeconds" in container[name]]


@pytest.mark.parametrize(
    "speculation, flags",
    [
        ({"algorithm": "off"}, ["--speculative-algorithm", "off"]),
        ({"algorithm": "ngram", "numSteps": 3}, ["--speculative-algorithm", "ngram", "--speculative-num-steps", "3"]),
        ({"algorithm": "mtp", "adaptive": {}}, ["--speculative-algorithm", "mtp", "--speculative-adaptive"]),
        (
            {"algorithm": "mtp", "adaptive": {"maxSteps": 5}},
            ["--speculative-algorithm", "mtp", "--speculative-num-steps", "5", "--speculative-adaptive"],
        ),
    ],
)
def test_speculation_is_said_to_the_runtime(speculation, flags):
    """Each choice in the runtime's own flags, and nothing that was not chosen."""
    arguments = deployment_of(make_model(speculation=speculation))["spec"]["template"]["spec"]["containers"][0]["args"]

    assert arguments[arguments.index("--speculative-algorithm") :] == flags


def test_every_flag_is_one_of_the_runtimes():
    """The operator says nothing that `paceline serve` and `paceline fetch` would not understand."""
    known = {one.value for one in nodes("paceline_runtime") if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    children = [child for case in operator_golden.CASES for child in operator_golden.children(case)]
    pods = [child["spec"]["template"]["spec"] for child in children if child["kind"] == "Deployment"]
    containers = [one for pod in pods for one in (*pod["containers"], *pod.get("initContainers", ()))]
    flags = {argument for one in containers for argument in one["args"] if argument.startswith("--")}

    assert len(flags) > 8
    assert flags - known == set()


def test_secrets_appear_by_name_only():
    """Every credential is a reference that the kubelet resolves."""
    spec = {"target": {"uri": "hf://org/name", "secretRef": {"name": "hub"}}, "auth": {"apiKeySecretRef": {"name": "key"}}}
    pod = deployment_of(parse(make_resource(spec)))["spec"]["template"]["spec"]
    env = [one for container in (*pod["initContainers"], *pod["containers"]) for one in container["env"]]
    references = {one["name"]: one["valueFrom"] for one in env if "valueFrom" in one}

    assert references == {
        "HF_TOKEN": {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}},
        "PACELINE_API_KEY": {"secretKeyRef": {"name": "key", "key": "api-key"}},
    }


@pytest.mark.parametrize(
    "spec, values",
    [
        ({"resources": {"gpu": {"count": 0}}}, ["void"]),
        ({"resources": {"gpu": {"count": 1}}}, []),
        ({"resources": {"gpu": {"count": 0}}, "scheduling": {"resourceClaims": [{"name": "gpu"}]}}, []),
        (
            {
                "resources": {"gpu": {"count": 0}},
                "runtime": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            },
            ["all"],
        ),
    ],
)
def test_a_pod_without_gpus_sees_none(spec, values):
    """On a node of GPUs it would take the memory of those that were given them; an own setting wins."""
    env = deployment_of(make_model(**spec))["spec"]["template"]["spec"]["containers"][0]["env"]

    assert [one["value"] for one in env if one["name"] == "NVIDIA_VISIBLE_DEVICES"] == values


def test_what_a_pod_fetches_is_asked_of_its_node():
    """Else a pod that fills the disk is the first to be evicted; a field of the resource wins, and a cache needs none."""
    request = {
        name: deployment_of(make_model(**HUB_PAIR, **spec), inherited=Inherited(fetched_bytes=fetched_bytes))["spec"][
            "template"
        ]["spec"]["containers"][0]["resources"]["requests"].get("ephemeral-storage")
        for name, spec, fetched_bytes in (
            ("known", {}, 5 << 30),
            ("not known", {}, 0),
            ("said", {"resources": {"ephemeralStorage": "7Gi"}}, 5 << 30),
            ("cached", {"cache": {"size": "9Gi"}}, 5 << 30),
        )
    }

    assert request == {"known": str(6 << 30), "not known": None, "said": "7Gi", "cached": None}


def test_every_pod_may_pull_with_the_models_secrets():
    """The inspect Job too: its image may lie in a registry that asks who one is."""
    model = make_model(**HUB_PAIR, cache={"size": "1Gi"}, runtime={"imagePullSecrets": [{"name": "registry"}]})
    found = desired(model, CONFIG, Inherited(), frozenset())
    templates = [
        one["spec"]["template"]["spec"]
        for one in (*found.inspection, *found.caching, *found.serving)
        if "template" in one["spec"]
    ]

    assert [one["imagePullSecrets"] for one in templates] == [[{"name": "registry"}]] * 3


def test_no_pod_gets_a_service_account_token():
    """Models and Jobs have nothing to say to the API server."""
    pods = [
        child["spec"]["template"]["spec"]
        for case in operator_golden.CASES
        for child in operator_golden.children(case)
        if "template" in child["spec"]
    ]

    assert len(pods) == 7
    assert {pod["automountServiceAccountToken"] for pod in pods} == {False}


def test_kinds_that_the_cluster_lacks_are_named_and_left_out():
    """A PodMonitor without Prometheus' operator is no reason to serve nothing."""
    model = make_model(metrics={"podMonitor": {"enabled": True}})

    found = desired(model, CONFIG, Inherited(), frozenset())

    assert found.missing_kinds == ("PodMonitor",)
    assert "PodMonitor" not in {child["kind"] for child in found.serving}


def test_job_names_change_with_what_they_are_about_only():
    """An edit of sources makes new Jobs, any other edit keeps them."""
    base = parse(make_resource({**HUB_PAIR, "cache": {"size": "1Gi"}}))
    scaled = parse(make_resource({**HUB_PAIR, "cache": {"size": "1Gi"}, "replicas": 3}))
    moved = parse(make_resource({**HUB_PAIR, "cache": {"size": "1Gi"}, "target": {"uri": "hf://org/other"}}))

    def jobs(model):
        return {key for key in desired(model, CONFIG, Inherited(), ALL_KINDS).keys if key[0] == "Job"}

    assert jobs(base) == jobs(scaled)
    assert not jobs(base) & jobs(moved)


def test_the_stamp_is_of_everything_but_itself():
    """Stamping again changes nothing; another field changes the stamp."""
    child = deployment_of(make_model())
    other = deployment_of(make_model(drain={"seconds": 61}))

    assert stamped(child) == child
    assert other["metadata"]["annotations"] != child["metadata"]["annotations"]
