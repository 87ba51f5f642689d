"""A resource as values, and what is refused that neither schema nor CEL can refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import CLAIM, HUB_PAIR, make_model, make_resource

from paceline_operator.errors import SpecError
from paceline_operator.spec.model import parse
from paceline_operator.spec.source import Draft, Source, Target
from paceline_runtime.fetch.arguments import source as fetched

SHA256 = f"#sha256={'0' * 64}"


def test_defaults_are_the_crds():
    """A resource that the API server has not defaulted yet means the same as one that it has."""
    spec = make_model().spec

    assert (spec.num_replicas, spec.speculation.algorithm, spec.rollout.max_surge) == (1, "off", 0)
    assert (spec.resources.gpu.count, spec.drain.seconds, spec.service.port) == (1, 60, 8000)


def test_names_are_read_in_camel_case():
    """JSON's names reach the values."""
    model = make_model(servedModelName="chat", startupTimeoutSeconds=77, runtime={"readOnlyRootFilesystem": False})

    assert (model.served_model_name, model.spec.startup_timeout_seconds) == ("chat", 77)
    assert not model.spec.runtime.read_only_root_filesystem


def test_no_replicas_where_an_autoscaler_decides():
    """The count is somebody else's."""
    assert make_model(autoscaling={"maxReplicas": 3}).spec.num_replicas is None


def test_fields_of_a_newer_crd_are_no_reason_to_stop():
    """An older operator goes on serving what it understands."""
    assert make_model(tomorrow={"a": 1}).name == "demo"


@pytest.mark.parametrize(
    "spec, message",
    [
        ({}, "spec: Object missing required field `target`"),
        ({**CLAIM, "replicas": "two"}, "spec.replicas: Expected `int"),
        ({"target": {"uri": "ftp://host/x"}}, "spec.target.uri: must start with one of hf://"),
        ({"target": {"uri": "pvc://claim/../x"}}, "spec.target.uri: must not contain '..'"),
        ({"target": {"uri": "hf://org/name/folder"}}, "spec.target.uri: a hub source reads hf://org/name"),
        (
            {"target": {"uri": "hf://org/name", "revision": "a..b"}},
            "spec.target.uri: a hub source reads hf://org/name[@revision]",
        ),
        ({**CLAIM, "speculation": {"algorithm": "dflash"}}, "spec.draft: speculation.algorithm dflash needs draft.uri"),
        (
            {**CLAIM, "scheduling": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}]}},
            "spec.resources.gpu.count: must be 0 with scheduling.resourceClaims",
        ),
        (
            {**CLAIM, "scheduling": {"spread": [{"topologyKey": "paceline.dev/model"}]}},
            "spec.scheduling.spread[0].topologyKey: must be a label of nodes",
        ),
    ],
)
def test_bad_resource_is_refused_by_field(spec, message):
    """The message names the field and what to do."""
    with pytest.raises(SpecError) as refusal:
        parse(make_resource(spec))

    assert message in str(refusal.value)


def test_all_problems_are_told_at_once():
    """Nobody has to apply five times to find five mistakes."""
    spec = {**HUB_PAIR, "target": {"uri": "ftp://a"}, "draft": {"uri": "hf://a/../b"}}

    with pytest.raises(SpecError) as refusal:
        parse(make_resource(spec))

    assert [problem.path for problem in refusal.value.problems] == ["spec.target.uri", "spec.draft.uri"]


@pytest.mark.parametrize(
    "source, location, path",
    [
        (Target(uri="pvc://models/a/b"), "pvc://models/a/b", "/models/claims/target/a/b"),
        (Target(uri="pvc://models"), "pvc://models", "/models/claims/target"),
        (Draft(uri="pvc://models/x.gguf"), "pvc://models/x.gguf", "/models/claims/draft/x.gguf"),
        (Target(uri="hf://org/name", revision="v1"), "hf://org/name@v1", "/models/weights/{digest}"),
        (Target(uri="hf://org/name/q.gguf", revision="v1"), "hf://org/name@v1/q.gguf", "/models/weights/{digest}/q.gguf"),
        (Target(uri="hf://org/name", revision="refs/pr/1"), "hf://org/name@refs%2Fpr%2F1", "/models/weights/{digest}"),
        (Target(uri="hf://org/name/q4/x.gguf", revision="v1"), "hf://org/name@v1/q4/x.gguf", "/models/weights/{digest}/x.gguf"),
        (Target(uri=f"https://host/a/q.gguf{SHA256}"), f"https://host/a/q.gguf{SHA256}", "/models/weights/{digest}/q.gguf"),
        (Target(uri="s3://bucket/a/q%20.gguf"), "s3://bucket/a/q%20.gguf", "/models/weights/{digest}/q%20.gguf"),
        (Target(uri="s3://bucket/prefix"), "s3://bucket/prefix", "/models/weights/{digest}"),
    ],
)
def test_where_a_source_is_read_from(source, location, path):
    """One place for readers and fetchers, and one path in the pod."""
    assert source.location == location
    assert source.path == path.format(digest=source.digest)


@pytest.mark.parametrize("uri", ["https://host/my%20model.gguf", "https://host/a/q%2B4.gguf", "https://host/x;y.gguf"])
def test_the_runtime_loads_the_file_that_the_fetch_writes(uri):
    """The fetch decodes the name that an address ends with."""
    assert Target(uri=uri).path.rpartition("/")[2] == fetched(uri).file_name


@given(st.text(min_size=1), st.text(min_size=1), st.one_of(st.none(), st.text(min_size=1)))
def test_two_sources_share_a_folder_only_if_they_are_the_same(left, right, revision):
    """A changed uri or revision is fetched beside the old one, never over it."""
    a, b = (Source(uri=f"hf://org/{name}", revision=revision) for name in (left, right))

    assert (a.digest == b.digest) == (a.location == b.location)
