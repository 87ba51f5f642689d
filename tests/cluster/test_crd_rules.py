"""The kind's own rules on a real API server: good resources pass, each bad one is refused with its sentence.

Nothing is webhook or operator here: these rules hold even when both are down. Every request is a dry run.
"""

import copy

import pytest
import yaml
from processcluster import Cluster, ClusterError
from source_tree import ROOT

from paceline_runtime.fetch.arguments import source
from paceline_runtime.fetch.errors import RequestError

CRD = ROOT / "crds" / "speculativemodels.paceline.dev.yaml"
CLAIM = {"target": {"uri": "pvc://models/a"}}
HUB = {"target": {"uri": "hf://org/target"}}
PAIR = {**HUB, "draft": {"uri": "hf://org/draft"}, "speculation": {"algorithm": "dflash"}}
KEDA = {"prometheusAddress": "http://prometheus:9090"}
DIGEST = "sha256:" + "0" * 64

GOOD = {
    "least": CLAIM,
    "pair": {**PAIR, "speculation": {"algorithm": "dflash", "numSteps": 7}},
    "revision": {"target": {"uri": "hf://org/target/q4.gguf", "revision": "refs/pr/1", "secretRef": {"name": "hub"}}},
    "file in a folder": {"target": {"uri": "hf://org/target/q4/sub.dir/x-Q4.gguf", "revision": "_v1"}},
    "object store": {"target": {"uri": "s3://bucket/prefix", "secretRef": {"name": "s3"}}},
    "registry": {"target": {"uri": f"oci://registry:5000/a/b@{DIGEST}"}},
    "registry, tag and digest": {"target": {"uri": f"oci://[::1]:5000/a-b/c__d:v1@{DIGEST}"}},
    "bucket": {"target": {"uri": "s3://my.bucket-1"}},
    "web": {"target": {"uri": "https://host/a/q4.gguf#" + "sha256=" + "0" * 64}},
    "adaptive": {**CLAIM, "speculation": {"algorithm": "ngram", "adaptive": {"maxSteps": 5}}},
    "autoscaling": {**CLAIM, "autoscaling": {"maxReplicas": 4}},
    "keda": {**CLAIM, "autoscaling": {"minReplicas": 1, "maxReplicas": 4, "keda": KEDA}},
    "cache": {**HUB, "cache": {"size": "80Gi"}, "replicas": 4},
    "one pod's cache": {**HUB, "cache": {"size": "80Gi", "accessModes": ["ReadWriteOnce"]}},
    "cache to write once and read often": {
        **HUB,
        "cache": {"size": "0.5Gi", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]},
        "replicas": 2,
    },
    "recreate": {**CLAIM, "rollout": {"strategy": "Recreate", "maxSurge": 0, "maxUnavailable": 0}},
    "own args": {
        **CLAIM,
        "runtime": {"args": ["--max-model-len", "4096", "--api-key-file=/x"], "env": [{"name": "A", "value": "b"}]},
    },
    "labels and annotations": {
        **CLAIM,
        "scheduling": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200", "pool": ""}},
        "service": {"annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "an nlb"}},
        "metrics": {"podMonitor": {"labels": {"release": "prometheus"}}},
        "networkPolicy": {"fromNamespaces": ["web-1"]},
    },
    "scheduling": {
        **CLAIM,
        "scheduling": {
            "tolerations": [
                {"operator": "Exists"},
                {"key": "pool", "value": "gpu"},
                {"key": "pool", "operator": "Exists", "value": "", "effect": "NoExecute", "tolerationSeconds": 0},
            ],
            "spread": [{"topologyKey": "zone"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "h200"}],
        },
    },
}

BAD = {
    "no target": ({}, "spec.target: Required value"),
    "scheme": ({"target": {"uri": "ftp://host/x"}}, "uri must start with hf://, pvc://, oci://, s3:// or https://"),
    "nothing after the scheme": ({"target": {"uri": "pvc:///x"}}, "and name a place after it"),
    "dots": ({"target": {"uri": "pvc://models/../x"}}, "uri must contain neither '..' nor spaces"),
    "space": ({"target": {"uri": "s3://bucket/a b"}}, "uri must contain neither '..' nor spaces"),
    "line end": ({"target": {"uri": "s3://bucket/a\nb"}}, "uri must contain neither '..' nor spaces"),
    "variable": ({"target": {"uri": "https://host/$(HOME).gguf"}}, "nor '$', which Kubernetes expands"),
    "query": ({"target": {"uri": "https://host/x.gguf?token=1"}}, "uri must be a plain address"),
    "credentials": ({"target": {"uri": "https://user:pw@host/x.gguf"}}, "uri must be a plain address"),
    "revision in uri": ({"target": {"uri": "hf://org/name@v1"}}, "a revision into revision"),
    "hub path": (
        {"target": {"uri": "hf://org/name/folder/x"}},
        "an hf:// uri is hf://ORG/NAME or hf://ORG/NAME/[FOLDER/]FILE.gguf",
    ),
    "hub folder that is none": ({"target": {"uri": "hf://org/name/./x.gguf"}}, "an hf:// uri is hf://ORG/NAME or"),
    "dots in a revision": ({"target": {"uri": "hf://org/name", "revision": "a..b"}}, "revision must not contain '..'"),
    "claim name": ({"target": {"uri": "pvc://Models"}}, "a pvc:// uri is pvc://CLAIM or pvc://CLAIM/PATH"),
    "repository in upper case": ({"target": {"uri": "oci://registry/Model:v1"}}, "the repository in lower case"),
    "long tag": ({"target": {"uri": "oci://registry/model:" + "x" * 129}}, "an oci:// uri reads oci://REGISTRY"),
    "port for a tag": ({"target": {"uri": "oci://registry:5000/model"}}, "an oci:// uri names a tag or a digest"),
    "bucket in upper case": ({"target": {"uri": "s3://Bucket/model"}}, "buckets have names of 3 to 63 lowercase"),
    "short bucket": ({"target": {"uri": "s3://ab/model"}}, "buckets have names of 3 to 63 lowercase"),
    "no tag": ({"target": {"uri": "oci://registry/model"}}, "an oci:// uri names a tag or a digest"),
    "web folder": ({"target": {"uri": "https://host/folder/"}}, "an https:// uri names one GGUF file"),
    "web digest": ({"target": {"uri": "https://host/x.gguf#md5=1"}}, "only an https:// uri may end with #"),
    "revision of a claim": ({"target": {"uri": "pvc://m", "revision": "v1"}}, "revision is only known for hf:// uris"),
    "secret of a claim": ({"target": {"uri": "pvc://m", "secretRef": {"name": "s"}}}, "secretRef is read for hf://"),
    "long uri": ({"target": {"uri": "pvc://m/" + "x" * 600}}, "Too long"),
    "algorithm": ({**CLAIM, "speculation": {"algorithm": "medusa"}}, "Unsupported value"),
    "both depths": (
        {**CLAIM, "speculation": {"algorithm": "ngram", "numSteps": 3, "adaptive": {}}},
        "give numSteps or adaptive, not both",
    ),
    "depth of nothing": (
        {**CLAIM, "speculation": {"algorithm": "off", "numSteps": 3}},
        "algorithm off drafts nothing: remove numSteps and adaptive",
    ),
    "too deep": ({**CLAIM, "speculation": {"algorithm": "ngram", "numSteps": 65}}, "less than or equal to 64"),
    "dflash without draft": ({**CLAIM, "speculation": {"algorithm": "dflash"}}, "algorithm dflash needs draft.uri"),
    "draft without dflash": ({**PAIR, "speculation": {"algorithm": "ngram"}}, "draft is read by speculation.algorithm dflash"),
    "draft is target": ({**PAIR, "draft": {"uri": "hf://org/target"}}, "a model cannot draft for itself"),
    "draft in a GGUF file": ({**PAIR, "draft": {"uri": "hf://org/draft/x.gguf"}}, "a draft is a folder with safetensors"),
    "draft from the web": (
        {**PAIR, "draft": {"uri": f"https://host/x.gguf#sha256={'0' * 64}"}},
        "a draft is a folder with safetensors",
    ),
    "replicas twice": ({**CLAIM, "replicas": 2, "autoscaling": {"maxReplicas": 3}}, "give replicas or autoscaling, not both"),
    "negative": ({**CLAIM, "replicas": -1}, "greater than or equal to 0"),
    "bounds crossed": (
        {**CLAIM, "autoscaling": {"minReplicas": 5, "maxReplicas": 4}},
        "minReplicas must be at most maxReplicas",
    ),
    "scaled to zero": (
        {**CLAIM, "autoscaling": {"minReplicas": 0, "maxReplicas": 4, "keda": KEDA}},
        "spec.autoscaling.minReplicas in body should be greater than or equal to 1",
    ),
    "shared cache": (
        {**HUB, "replicas": 2, "cache": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}},
        "cache.accessModes ReadWriteOnce serves one pod",
    ),
    "shared cache, autoscaled": (
        {**HUB, "autoscaling": {"maxReplicas": 2}, "cache": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}},
        "cache.accessModes ReadWriteOnce serves one pod",
    ),
    "empty cache": ({**HUB, "cache": {"size": "0"}}, "cache.size must be above 0"),
    "cache that nobody fills": (
        {**HUB, "cache": {"size": "1Gi", "accessModes": ["ReadOnlyMany"]}},
        "cache.accessModes ReadOnlyMany alone cannot be filled",
    ),
    "one pod's mode and another": (
        {**HUB, "cache": {"size": "1Gi", "accessModes": ["ReadWriteOncePod", "ReadWriteMany"]}},
        "cache.accessModes ReadWriteOncePod stands alone",
    ),
    "cache of a claim": ({**CLAIM, "cache": {"size": "1Gi"}}, "every source is a claim already"),
    "size": ({**HUB, "cache": {"size": "big"}}, "spec.cache.size"),
    "no rollout": ({**CLAIM, "rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "no pod could ever be replaced"),
    # Argument parsers complete what is unambiguous unless they are told not to.
    "owned argument, shortened": ({**CLAIM, "runtime": {"args": ["--mod", "x"]}}, "runtime.args may not set what the operator"),
    "owned argument": ({**CLAIM, "runtime": {"args": ["--port=1"]}}, "runtime.args may not set what the operator sets"),
    "owned variable": (
        {**CLAIM, "runtime": {"env": [{"name": "PACELINE_API_KEY", "value": "x"}]}},
        "runtime.env may not set what the operator sets",
    ),
    "value twice": (
        {
            **CLAIM,
            "runtime": {"env": [{"name": "A", "value": "b", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        },
        "give value or valueFrom, not both",
    ),
    "value from nowhere": ({**CLAIM, "runtime": {"env": [{"name": "A", "valueFrom": {}}]}}, "exactly one of secretKeyRef"),
    "claim twice": (
        {
            **CLAIM,
            "scheduling": {"resourceClaims": [{"name": "g", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}]},
        },
        "exactly one of resourceClaimName and resourceClaimTemplateName",
    ),
    "budget twice": (
        {**CLAIM, "disruption": {"minAvailable": 1, "maxUnavailable": 1}},
        "give minAvailable or maxUnavailable, not both",
    ),
    "gpu name": ({**CLAIM, "resources": {"gpu": {"resourceName": "gpu"}}}, "spec.resources.gpu.resourceName"),
    "secret's name": ({"target": {"uri": "hf://a/b", "secretRef": {"name": "a..b"}}}, "spec.target.secretRef.name"),
    "gpu name's domain": ({**CLAIM, "resources": {"gpu": {"resourceName": "a..b/gpu"}}}, "spec.resources.gpu.resourceName"),
    "label's value": ({**CLAIM, "scheduling": {"nodeSelector": {"pool": "a b"}}}, "spec.scheduling.nodeSelector.pool"),
    "label's key": ({**CLAIM, "scheduling": {"nodeSelector": {"a b": "x"}}}, "keys of labels read NAME or PREFIX/NAME"),
    "annotation's key": ({**CLAIM, "service": {"annotations": {"a b": "x"}}}, "keys of annotations read NAME or PREFIX/NAME"),
    "label of ours": (
        {**CLAIM, "metrics": {"podMonitor": {"labels": {"app.kubernetes.io/name": "x"}}}},
        "the operator sets app.kubernetes.io/name",
    ),
    "namespace": ({**CLAIM, "networkPolicy": {"fromNamespaces": ["a b"]}}, "spec.networkPolicy.fromNamespaces[0]"),
    "secret's key": (
        {**CLAIM, "runtime": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a b"}}}]}},
        "spec.runtime.env[0].valueFrom.secretKeyRef.key",
    ),
    "toleration of nothing": ({**CLAIM, "scheduling": {"tolerations": [{}]}}, "it needs operator Exists"),
    "toleration with a value": (
        {**CLAIM, "scheduling": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}},
        "operator Exists compares no value",
    ),
    "toleration for a time": (
        {**CLAIM, "scheduling": {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]}},
        "tolerationSeconds needs effect NoExecute",
    ),
    "no node will do": (
        {
            **CLAIM,
            "scheduling": {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
                }
            },
        },
        "nodeSelectorTerms",
    ),
    "token in the spec": ({"target": {"uri": "hf://a/b", "token": "secret"}}, 'unknown field "spec.target.token"'),
}
BAD_NAMES = ["x" * 41, "a.b", "1a"]

OLD_CACHE = {**HUB, "cache": {"size": "80Gi", "storageClassName": "fast"}}
TRANSITIONS = {
    "grow": ({"size": "100Gi", "storageClassName": "fast"}, None),
    "shrink": ({"size": "79Gi", "storageClassName": "fast"}, "cache.size cannot shrink"),
    "other class": ({"size": "80Gi", "storageClassName": "slow"}, "cache.storageClassName cannot change"),
    "no class": ({"size": "80Gi"}, "cache.storageClassName cannot change"),
    "other modes": (
        {"size": "80Gi", "storageClassName": "fast", "accessModes": ["ReadOnlyMany"]},
        "cache.accessModes cannot change",
    ),
}


@pytest.fixture(scope="module")
def api(control_plane: Cluster) -> Cluster:
    """The control plane with the kind installed."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{yaml.safe_load(CRD.read_text())['metadata']['name']}")
    return control_plane


def resource(spec, name="demo"):
    body = {"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeModel", "metadata": {"name": name}, "spec": spec}
    return yaml.safe_dump(copy.deepcopy(body))


def dry_run(cluster, namespace, text):
    return cluster.kubectl("create", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-", input=text)


@pytest.fixture(scope="module")
def refusals(api):
    """Every bad resource's refusal, asked for one after another in the default namespace."""
    found = {}
    for name, (spec, _) in BAD.items():
        with pytest.raises(ClusterError) as refusal:
            dry_run(api, "default", resource(spec))
        found[name] = str(refusal.value)
    return found


@pytest.mark.parametrize("name", GOOD)
def test_good_resource_passes(api, name):
    """The rules refuse nothing that works."""
    assert "created" in dry_run(api, "default", resource(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_bad_resource_is_refused_with_its_message(refusals, name):
    """In a sentence that says what to do."""
    assert BAD[name][1] in refusals[name]


@pytest.mark.parametrize("name", GOOD)
def test_what_passes_is_what_the_fetch_can_parse(name):
    """Else the Job would find out."""
    source(GOOD[name]["target"]["uri"], GOOD[name]["target"].get("revision"))


@pytest.mark.parametrize(
    "name", ["repository in upper case", "long tag", "port for a tag", "bucket in upper case", "short bucket"]
)
def test_what_the_fetch_cannot_parse_is_refused_for_that(name):
    """The rules are no stricter than the fetch."""
    with pytest.raises(RequestError):
        source(BAD[name][0]["target"]["uri"])


def test_several_problems_are_told_together(api):
    """One apply shows all of them."""
    spec = {**CLAIM, "speculation": {"algorithm": "dflash"}, "replicas": 1, "autoscaling": {"maxReplicas": 3}}

    with pytest.raises(ClusterError) as refusal:
        dry_run(api, "default", resource(spec))

    assert "needs draft.uri" in str(refusal.value)
    assert "not both" in str(refusal.value)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_children_could_not_have_are_refused(api, name):
    """A Service's name must be a DNS label, and Jobs add to it."""
    with pytest.raises(ClusterError, match="at most 40 characters that starts with a letter"):
        dry_run(api, "default", resource(CLAIM, name))


@pytest.mark.parametrize("name", TRANSITIONS)
def test_what_cannot_change_is_refused(api, namespace, name):
    """Only changes that no claim can follow; the rest of the spec stays free."""
    api.apply(resource(OLD_CACHE), "-n", namespace)
    cache, message = TRANSITIONS[name]
    text = resource({**OLD_CACHE, "target": {"uri": "hf://org/next"}, "cache": cache})

    if message is None:
        api.apply(text, "-n", namespace)
    else:
        with pytest.raises(ClusterError, match=message):
            api.apply(text, "-n", namespace)


def test_scale_subresource_and_short_names(api, namespace):
    """`kubectl scale` works, whether or not replicas was set before."""
    api.apply(resource(CLAIM), "-n", namespace)
    api.kubectl("scale", "smodel/demo", "--replicas=3", "-n", namespace)

    assert api.kubectl("get", "specm", "demo", "-n", namespace, "-o", "jsonpath={.spec.replicas}") == "3"


def test_columns_are_the_documented_ones(api, namespace):
    """What `kubectl get -o wide` tells at a glance."""
    api.apply(resource(PAIR), "-n", namespace)
    header = api.kubectl("get", "specm", "-n", namespace, "-o", "wide").splitlines()[0].split()

    assert header == ["NAME", "READY", "REASON", "TARGET", "DRAFT", "REPLICAS", "ACCEPT", "ENDPOINT", "MANAGER", "AGE"]


def test_no_default_hides_in_the_items_of_a_list():
    """What is applied is what is there: tools that compare both would see a difference in every list for ever."""
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = list(_fields(schema, ""))

    assert len([path for path, field in fields if "default" in field]) > 10
    assert [path for path, field in fields if "default" in field and "[]" in path] == []


def test_every_field_is_described_and_bounded():
    """`kubectl explain` has a sentence for each field, and no string or list is without limit."""
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = list(_fields(schema, ""))

    assert len(fields) > 150
    assert [path for path, field in fields if not field.get("description") and path != ".metadata"] == []
    assert [path for path, field in fields if not _is_bounded(field) and path not in (".apiVersion", ".kind")] == []


def test_defaults_are_the_operators(api, namespace):
    """The API server and the operator's own parser mean the same by what is left out."""
    from paceline_operator.spec.model import parse

    api.apply(resource(CLAIM), "-n", namespace)
    stored = yaml.safe_load(api.kubectl("get", "specm", "demo", "-n", namespace, "-o", "yaml"))
    bare = {**stored, "spec": CLAIM}

    assert parse(stored).spec == parse(bare).spec


def _fields(schema, path):
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _fields(field, f"{path}.{name}")
    if "items" in schema:
        yield f"{path}[]", schema["items"]
        yield from _fields(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield f"{path}.*", schema["additionalProperties"]
        yield from _fields(schema["additionalProperties"], f"{path}.*")


def _is_bounded(field):
    kind = field.get("type")
    if kind == "string":
        return "maxLength" in field or "enum" in field
    if kind == "array":
        return "maxItems" in field
    return "additionalProperties" not in field or "maxProperties" in field
