"""How pods come by their checkpoints: volumes, mounts, and what fetches."""

from dataclasses import replace

import pytest
from operator_builders import CONFIG, make_resource

from paceline_operator.objects.deployment import Inherited
from paceline_operator.planning.desired import desired
from paceline_operator.spec.model import parse


def pods_of(spec, config=CONFIG):
    """(component, pod spec) of every child that makes pods."""
    found = desired(parse(make_resource(spec)), config, Inherited(), frozenset())
    children = (*found.inspection, *found.caching, *found.serving)
    return {
        child["metadata"]["labels"]["paceline.dev/component"]: child["spec"]["template"]["spec"]
        for child in children
        if "template" in child["spec"]
    }


def claims_of(pod):
    """(volume -> claim, mount path -> claim) of a pod's first container."""
    claims = {one["name"]: one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]}
    mounted = {one["mountPath"]: claims[one["name"]] for one in pod["containers"][0]["volumeMounts"]}
    return {name: claim for name, claim in claims.items() if claim}, mounted


@pytest.mark.parametrize("component", ["inspect", "server"])
def test_a_claim_that_holds_both_checkpoints_is_one_volume(component):
    """A pod with two volumes of one claim never gets beyond ContainerCreating."""
    pair = {
        "target": {"uri": "pvc://models/target"},
        "draft": {"uri": "pvc://models/draft"},
        "speculation": {"algorithm": "dflash"},
    }
    pod = pods_of(pair)[component]
    claims, mounted = claims_of(pod)

    assert list(claims.values()) == ["models"]
    assert (mounted["/models/claims/target"], mounted["/models/claims/draft"]) == ("models", "models")


@pytest.mark.parametrize("component", ["inspect", "server"])
def test_each_claim_is_mounted_where_its_checkpoint_is_looked_for(component):
    """Two claims are two volumes."""
    pair = {
        "target": {"uri": "pvc://big/target"},
        "draft": {"uri": "pvc://small/draft"},
        "speculation": {"algorithm": "dflash"},
    }
    pod = pods_of(pair)[component]
    _, mounted = claims_of(pod)

    assert (mounted["/models/claims/target"], mounted["/models/claims/draft"]) == ("big", "small")


@pytest.mark.parametrize("modes", [["ReadWriteMany", "ReadOnlyMany"], ["ReadOnlyMany", "ReadWriteMany"]])
def test_the_order_of_access_modes_means_nothing(modes):
    """They are a set in the resource; the claim's list can never change, not even its order."""
    spec = {"target": {"uri": "hf://org/name"}, "cache": {"size": "1Gi", "accessModes": modes}}
    found = desired(parse(make_resource(spec)), CONFIG, Inherited(), frozenset())
    (claim,) = [child for child in found.caching if child["kind"] == "PersistentVolumeClaim"]

    assert claim["spec"]["accessModes"] == ["ReadOnlyMany", "ReadWriteMany"]


@pytest.mark.parametrize(
    "target, draft, tokens",
    [
        ("ours", "theirs", {"HF_TOKEN": "ours", "PACELINE_DRAFT_HF_TOKEN": "theirs"}),
        ("ours", "ours", {"HF_TOKEN": "ours"}),
        (None, "theirs", {"HF_TOKEN": "theirs"}),
    ],
)
def test_the_inspect_job_reads_each_source_with_its_own_token(target, draft, tokens):
    """With the target's token alone, a draft that is private to others would never be inspected, so never served."""
    uris = {"target": "hf://ours/target", "draft": "hf://theirs/draft"}
    secrets = {"target": target, "draft": draft}
    sources = {
        role: {"uri": uri, **({"secretRef": {"name": secrets[role]}} if secrets[role] else {})} for role, uri in uris.items()
    }
    (container,) = pods_of({**sources, "speculation": {"algorithm": "dflash"}})["inspect"]["containers"]
    references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}

    assert {name: reference["name"] for name, reference in references.items()} == tokens
    assert {reference["key"] for reference in references.values()} == {"HF_TOKEN"}


def test_the_address_in_a_sources_secret_wins_over_the_operators():
    """The fetch reads the variables as AWS's own tools do: the first of each pair that is set."""
    config = replace(CONFIG, s3_endpoint="https://store.example", s3_region="eu-1")
    spec = {"target": {"uri": "s3://bucket/model", "secretRef": {"name": "keys"}}}
    (fetch,) = pods_of(spec, config)["server"]["initContainers"]
    plain = {one["name"]: one["value"] for one in fetch["env"] if "value" in one}
    keys = {one["name"]: one["valueFrom"]["secretKeyRef"]["key"] for one in fetch["env"] if "valueFrom" in one}

    assert plain == {"HOME": "/tmp", "AWS_ENDPOINT_URL": "https://store.example", "AWS_DEFAULT_REGION": "eu-1"}
    assert (keys["AWS_ENDPOINT_URL_S3"], keys["AWS_REGION"]) == ("AWS_ENDPOINT_URL", "AWS_REGION")


def test_without_a_setting_of_the_operator_the_secret_is_asked_alone():
    """One name for each variable."""
    spec = {"target": {"uri": "s3://bucket/model", "secretRef": {"name": "keys"}}}
    (fetch,) = pods_of(spec)["server"]["initContainers"]
    keys = {one["name"]: one["valueFrom"]["secretKeyRef"]["key"] for one in fetch["env"] if "valueFrom" in one}

    assert [name for name, key in keys.items() if name != key] == []
    assert "AWS_ENDPOINT_URL" in keys
