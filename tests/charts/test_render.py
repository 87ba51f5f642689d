"""What the chart makes of its values."""

import re
import tomllib

import pytest
import yaml
from chart_objects import only
from source_tree import ROOT

from paceline_operator import config, main, names
from paceline_operator.admission import sample as reviews
from paceline_operator.cluster.kinds import CHILDREN, OPTIONAL, WATCHED

CHART = ROOT / "charts" / "paceline"
DIGEST = "sha256:" + "a" * 64


def container(objects):
    return only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]


def environment(objects):
    return {one["name"]: one.get("value", "") for one in container(objects)["env"]}


def test_lint_is_clean(chart):
    """As a reviewer would run it."""
    chart.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("values", sorted(CHART.glob("ci/*.yaml")), ids=lambda path: path.stem)
def test_ci_values_render(chart, values):
    """Each scenario gives objects with names, and kinds that are known."""
    objects = chart.render(yaml.safe_load(values.read_text()))

    assert all(one["metadata"]["name"] and one["apiVersion"] for one in objects)


def test_crds_are_those_of_the_repository(chart):
    """The chart ships what crds/ says, kept on uninstall unless one says else."""
    sources = {one["metadata"]["name"]: one["spec"] for one in map(yaml.safe_load, _texts(ROOT / "crds"))}
    shipped = [one for one in chart.render() if one["kind"] == "CustomResourceDefinition"]
    unkept = [one for one in chart.render({"crds": {"keep": False}}) if one["kind"] == "CustomResourceDefinition"]

    assert {one["metadata"]["name"]: one["spec"] for one in shipped} == sources
    assert {one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in shipped} == {"keep"}
    assert not any("annotations" in one["metadata"] for one in unkept)


def test_crds_can_be_left_to_others(chart):
    """Some clusters have CRDs installed by an administrator."""
    assert not [one for one in chart.render({"crds": {"enabled": False}}) if one["kind"] == "CustomResourceDefinition"]


def test_the_operator_reads_what_the_chart_sets(chart):
    """Every variable of the Deployment is one that the operator's config knows."""
    known = set(re.findall(r'"([A-Z0-9_]+)"', (ROOT / "operator/paceline_operator/config.py").read_text()))
    set_by_chart = set(
        environment(chart.render({"hub": {"endpoint": "https://h"}, "s3": {"endpoint": "https://s", "region": "r"}}))
    )

    assert set_by_chart <= known
    assert {"POD_ID", "PACELINE_WATCH_NAMESPACE", "HF_ENDPOINT", "AWS_REGION"} <= set_by_chart


def test_the_charts_environment_is_a_valid_one(chart, tmp_path):
    """The operator starts with what the chart gives it."""
    given = {**environment(chart.render()), "POD_ID": "a", "POD_NAMESPACE": "space"}

    found = config.from_environment({**given, "PACELINE_WEBHOOK_CERTIFICATES": str(tmp_path)})

    assert (found.clusterwide, found.operator_image) == (True, f"paceline/operator:{_version()}")


def test_rights_are_exactly_what_the_operator_does(chart):
    """All children and no verb on Secrets; status is patched, models and what children make are only read."""
    rules = only(chart.render(), "ClusterRole", "release-paceline-operator")["rules"]
    rights = {
        (group, resource): set(rule["verbs"]) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]
    }
    apply = {"get", "list", "create", "patch", "delete"}

    assert not [resource for _, resource in rights if "secret" in resource or "*" in resource]
    assert not [verbs for verbs in rights.values() if "*" in verbs]
    assert {(kind.group, kind.plural) for kind in CHILDREN} <= set(rights)
    assert all(rights[kind.group, kind.plural] == apply | (set() if kind in OPTIONAL else {"watch"}) for kind in CHILDREN)
    read_only = [(kind.group, kind.plural) for kind in WATCHED if kind not in CHILDREN]
    assert read_only == [("", "pods"), ("apps", "replicasets")]
    assert all(rights[place] == {"get", "list", "watch"} for place in (*read_only, (names.GROUP, names.PLURAL)))
    assert rights[names.GROUP, f"{names.PLURAL}/status"] == {"patch"}
    assert rights["", "events"] == {"get", "list", "create", "patch"}


def test_namespaced_scope_needs_no_cluster_role(chart):
    """Everything but the webhook's configuration lies in the release's namespace, and watches only that."""
    objects = chart.render({"scope": "Namespace", "crds": {"enabled": False}})
    hooks = only(objects, "ValidatingWebhookConfiguration")["webhooks"]

    assert not [one for one in objects if one["kind"].startswith("ClusterRole")]
    assert only(objects, "Role")["metadata"]["namespace"] == "space"
    assert environment(objects)["PACELINE_WATCH_NAMESPACE"] == "space"
    assert hooks[0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "space"}}


def test_webhook_is_about_our_kind_and_never_about_deletion(chart):
    """Others' resources do not depend on this operator, and its own can always be removed."""
    (hook,) = only(chart.render(), "ValidatingWebhookConfiguration")["webhooks"]
    (rule,) = hook["rules"]

    assert (rule["apiGroups"], rule["resources"]) == ([names.GROUP], [names.PLURAL])
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert hook["clientConfig"]["service"]["path"] == f"/{reviews.WEBHOOK_ID}"


def test_one_certificate_authority_for_secret_and_configuration(chart):
    """What the pods serve is what the API server trusts."""
    objects = chart.render()
    (hook,) = only(objects, "ValidatingWebhookConfiguration")["webhooks"]

    assert hook["clientConfig"]["caBundle"] == only(objects, "Secret")["data"]["ca.crt"]


def test_cert_manager_makes_the_certificate_when_asked(chart):
    """No Secret from the chart then, and the CA is injected."""
    objects = chart.render({"webhook": {"certificate": {"certManager": {"enabled": True}}}})
    hook = only(objects, "ValidatingWebhookConfiguration")

    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == "space/release-paceline-operator"
    assert only(objects, "Certificate")["spec"]["dnsNames"][0] == "release-paceline-operator.space.svc"
    assert not [one for one in objects if one["kind"] == "Secret"]


def test_the_chart_test_trusts_what_the_api_server_trusts(chart):
    """An authority of one's own comes from caBundle: the Secret may hold the leaf alone, which vouches for nobody."""
    own = chart.render({"webhook": {"certificate": {"existingSecret": "mine", "caBundle": "Q0E="}}})
    (pod,) = [one for one in own if one["kind"] == "Pod"]
    (made,) = [one for one in chart.render() if one["kind"] == "Pod"]

    assert "--ca-base64=Q0E=" in pod["spec"]["containers"][0]["args"]
    assert "volumes" not in pod["spec"]
    assert "--ca=/certificates/ca.crt" in made["spec"]["containers"][0]["args"]
    assert made["spec"]["volumes"][0]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_a_pod_that_ends_answers_until_nobody_calls_it(chart):
    """The grace period covers the wait before SIGTERM and the operator's own limit after it."""
    pod = only(chart.render(), "Deployment")["spec"]["template"]["spec"]
    program, wait_s = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(wait_s) + main.EXIT_TIMEOUT_S


def test_images_by_registry_tag_and_digest(chart):
    """A digest wins over a tag, the global registry over an image's own."""
    plain = container(chart.render({"image": {"registry": "r.example", "tag": "9"}}))["image"]
    pinned = container(chart.render({"image": {"registry": "r.example", "tag": "9", "digest": DIGEST}}))["image"]
    mirrored = container(chart.render({"image": {"registry": "r.example"}, "global": {"imageRegistry": "m.example"}}))["image"]

    assert plain == "r.example/paceline/operator:9"
    assert pinned == f"r.example/paceline/operator@{DIGEST}"
    assert mirrored == f"m.example/paceline/operator:{_version()}"


def test_pods_meet_the_restricted_standard(chart):
    """Of the operator and of `helm test` alike."""
    objects = chart.render()
    pods = [only(objects, "Deployment")["spec"]["template"]["spec"], only(objects, "Pod")["spec"]]

    for pod in pods:
        security = pod["containers"][0]["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert security["capabilities"]["drop"] == ["ALL"]


def test_selectors_say_nothing_of_a_version(chart):
    """An upgrade could not change them."""
    selector = only(chart.render(), "Deployment")["spec"]["selector"]["matchLabels"]

    assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    assert selector.items() <= only(chart.render(), "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert only(chart.render(), "Service", "release-paceline-operator")["spec"]["selector"] == selector


def test_optional_objects_are_off_until_asked_for(chart):
    """Kinds that a cluster may lack are not rendered by default."""
    kinds = {one["kind"] for one in chart.render()}
    asked = {
        one["kind"] for one in chart.render({"metrics": {"podMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True}})
    }

    assert asked - kinds == {"PodMonitor", "NetworkPolicy"}
    assert only(chart.render(), "PodDisruptionBudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert "PodDisruptionBudget" not in {one["kind"] for one in chart.render({"replicas": 1})}


def test_common_labels_are_on_every_object(chart):
    """The Pod of `helm test` and the CRDs among them."""
    values = {"commonLabels": {"team": "a"}, "metrics": {"podMonitor": {"enabled": True}}, "networkPolicy": {"enabled": True}}
    managed = {"webhook": {"certificate": {"certManager": {"enabled": True}}}}
    objects = [*chart.render(values), *chart.render({**values, **managed})]

    assert [one["kind"] for one in objects if one["metadata"]["labels"].get("team") != "a"] == []


def test_names_of_digits_stay_strings(chart):
    """The API server takes no number for a label, a namespace or a name, and helm takes `123` for all of them."""
    values = {"scope": "Namespace", "nameOverride": "123", "serviceAccount": {"name": "123"}, "priorityClassName": "123"}
    text = chart.run("template", "123", str(CHART), "--namespace=123", values=values)
    objects = [document for document in yaml.safe_load_all(text) if document]

    assert [path for path, value in _leaves(objects) if value == 123] == []
    assert only(objects, "Deployment")["metadata"]["labels"]["app.kubernetes.io/instance"] == "123"


def test_no_custom_resource_in_the_release(chart):
    """A resource that needs the webhook, or a kind of this very release, would fail the first install."""
    assert not [one for one in chart.render() if one["apiVersion"].startswith(("paceline.dev", "kopf.dev"))]


def test_extra_objects_are_templated(chart):
    """One can add what the chart has no value for."""
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}

    assert only(chart.render({"extraObjects": [extra]}), "ConfigMap")["metadata"]["name"] == "release-x"


def _leaves(value, path=""):
    """Every scalar with its path."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [(path, value)] if inner is None else [leaf for key, one in inner for leaf in _leaves(one, f"{path}/{key}")]


def _texts(folder):
    return [path.read_text() for path in sorted(folder.glob("*.yaml"))]


def _version():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
