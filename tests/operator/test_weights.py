"""How pods come by their checkpoints: volumes, mounts, and what fetches."""

import pytest
from operator_builders import CONFIG, make_resource

from paceline_operator.desired import desired
from paceline_operator.objects.deployment import Inherited
from paceline_operator.spec import parse


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
