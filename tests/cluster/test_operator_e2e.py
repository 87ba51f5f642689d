"""From `helm install` to tokens: the chart as it ships, the example as it ships, the real runtime, a real model.

One story, told in order by one test; its times are printed (`pytest -s` or the report of captured output).
"""

import time
from collections.abc import Iterator

import pytest
from operator_scene import SMOLLM2, Scene, installed, models_namespace
from processcluster import Cluster
from source_tree import ROOT

EXAMPLE = ROOT / "examples" / "smollm2.yaml"
QUESTION = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}
MILESTONES = ("Accepted", "Compatible", "Available", "Ready")
# The real model loads within seconds; a busy machine makes that minutes.
LOAD_LIMIT_S = 240


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """The chart installed, and a namespace for the model."""
    with installed(cluster), models_namespace(cluster, "story") as namespace:
        yield Scene(cluster, namespace)


class Clock:
    """Seconds since the last mark, for the printed story."""

    def __init__(self) -> None:
        self.started_at = self._last = time.monotonic()

    def mark(self, what: str) -> None:
        now = time.monotonic()
        print(f"{what:48} {now - self._last:6.1f} s")
        self._last = now


def first_true(scene: Scene, name: str) -> dict[str, int]:
    """Condition -> the poll at which it was first seen True, until all milestones were."""
    seen: dict[str, int] = {}
    polls = iter(range(100_000))

    def all_seen() -> bool:
        poll = next(polls)
        for type_, (status, *_) in scene.conditions(name).items():
            if status == "True":
                seen.setdefault(type_, poll)
        return seen.keys() >= set(MILESTONES)

    scene.cluster.wait_for(all_seen, f"conditions of {name}", LOAD_LIMIT_S)
    return seen


def test_helm_test_passes(scene: Scene):
    """The chart's own check: ready, a good resource in, a bad one out, over TLS that verifies."""
    scene.cluster.helm("test", "paceline", "--namespace", scene.release_namespace)


def test_from_apply_to_tokens_to_nothing(scene: Scene):
    """Apply, conditions in order, a chat completion, an edit that rolls with surge 0, a scaling, a deletion."""
    clock = Clock()
    scene.fill_claim()
    scene.cluster.apply(EXAMPLE.read_text(), "-n", scene.namespace)
    clock.mark("claim filled, example applied")

    seen = first_true(scene, "smollm2")
    clock.mark("Accepted, Compatible, Available, Ready")
    assert seen["Accepted"] < seen["Compatible"] < seen["Available"] <= seen["Ready"]

    wide = scene.kubectl("get", "specm", "-o", "wide")
    assert f"http://smollm2.{scene.namespace}.svc:8000/v1" in wide
    assert SMOLLM2.name in wide

    endpoint = scene.model("smollm2")["status"]["endpoint"]
    answer = scene.cluster.http(f"{endpoint}/chat/completions", QUESTION)
    clock.mark("a chat completion")
    assert answer.status == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].strip()
    assert answer.json()["usage"]["completion_tokens"] > 0

    scene.kubectl("patch", "specm", "smollm2", "--type=merge", "-p", '{"spec": {"speculation": {"numSteps": 2}}}')
    most_pods = roll(scene)
    clock.mark("numSteps edited and rolled")
    assert most_pods == 1
    assert pod_arguments(scene)[-4:-2] == ["--speculative-num-steps", "2"]

    scene.kubectl("scale", "specm", "smollm2", "--replicas=2")
    scene.until_settled("smollm2", LOAD_LIMIT_S)
    clock.mark("scaled to two")
    assert scene.model("smollm2")["status"]["readyReplicas"] == 2

    scene.kubectl("delete", "specm", "smollm2")
    scene.cluster.wait_for(lambda: scene.children("smollm2") == [], "nothing is left", 60)
    clock.mark("deleted, nothing left")
    print(f"{'all of it':48} {time.monotonic() - clock.started_at:6.1f} s")


def roll(scene: Scene) -> int:
    """Wait for a rollout to end; the most pods that the Deployment asked for at any time of it."""
    most = [0]

    def settled() -> bool:
        sets = scene.cluster.api.items(f"/apis/apps/v1/namespaces/{scene.namespace}/replicasets")
        most[0] = max(most[0], sum(one["spec"]["replicas"] for one in sets))
        resource, found = scene.model("smollm2"), scene.conditions("smollm2")
        is_new = resource["status"]["observedGeneration"] == resource["metadata"]["generation"]
        return is_new and len(sets) == 2 and found["Progressing"][1] == "Settled" and found["Ready"][0] == "True"

    scene.cluster.wait_for(settled, "the rollout ended", LOAD_LIMIT_S)
    return most[0]


def pod_arguments(scene: Scene) -> list[str]:
    containers = scene.get("deployment", "smollm2")["spec"]["template"]["spec"]["containers"]
    return list(containers[0]["args"])
