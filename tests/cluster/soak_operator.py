"""A soak of the operator: `python tests/cluster/soak_operator.py [--minutes 20] [--models 100] [--seed 1]`.

The chart runs as it ships, on a cluster of processes. Models are edited, deleted and made again at random, children are edited
and deleted by hand, pods crash, the operator's pods are killed and the API server is restarted; the pods of the models are
played on a ghost node. At the end every model has to be what its spec says, objects of others untouched, and Events few.
`test_operator_soak.py` runs it for as long as `--soak-minutes` says.
"""

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "support")]

from ghost_node import SCHEDULING, GhostNode  # noqa: E402
from ghost_player import Player  # noqa: E402
from operator_scene import MODELS, Scene, installed, models_namespace  # noqa: E402
from processcluster import Cluster, ClusterError  # noqa: E402

NAMESPACE = "soak"
KILL_EVERY_S, RESTART_EVERY_S, PAUSE_S = 23.0, 47.0, 0.15
SETTLE_S = 240.0
# A condition's status and reason make one Event, however often they come back.
MAX_EVENTS_OF_MODEL = 40
CHILDREN = {
    "deployments": "/apis/apps/v1",
    "services": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "jobs": "/apis/batch/v1",
}
MERGE = "application/merge-patch+json"


@dataclass
class Report:
    """What was done, and what was found wrong at the end."""

    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Soak:
    """One soak in a namespace of its own."""

    def __init__(self, scene: Scene, num_models: int, seed: int) -> None:
        self.scene, self.api, self.random = scene, scene.cluster.api, random.Random(seed)
        self.names = [f"model-{i}" for i in range(num_models)]
        self.missing = list(self.names)
        self.ghost, self.player, self.report = GhostNode(scene), Player(scene), Report()
        self.foreign = {name: self._make_foreign(name) for name in self.names[::10]}

    def run(self, seconds: float) -> Report:
        """Act at random for so long, then let everything settle and look."""
        with self.player:
            self._make_missing()
            started = time.monotonic()
            due = {self._kill: KILL_EVERY_S, self._restart: RESTART_EVERY_S}
            while (now := time.monotonic() - started) < seconds:
                for disturb in [one for one, at in due.items() if at <= now]:
                    disturb()
                    due[disturb] = time.monotonic() - started + {self._kill: KILL_EVERY_S}.get(disturb, RESTART_EVERY_S)
                self._make_missing()
                action = self.random.choices(ACTIONS, WEIGHTS)[0]
                self._act(action.__name__, action, self, self.random.choice(self.names))
                time.sleep(PAUSE_S)
            self.player.is_calm = True
            self._settle()
        self._look()
        return self.report

    def _act(self, what: str, action: Any, *args: Any) -> None:
        """One action; the webhook and the API server may be away."""
        try:
            action(*args)
            self.report.done[what.strip("_")] += 1
        except (OSError, HTTPException, ClusterError, RefusedError) as error:
            self.report.refused[str(error)[:40]] += 1

    def _call(self, method: str, path: str, body: object = None) -> None:
        answer = self.api.request(method, path, body, MERGE if method == "PATCH" else "application/json")
        if answer.status >= 400 and answer.status not in (404, 409):
            raise RefusedError(f"{answer.status} {answer.text[:200]}")

    def _make_missing(self) -> None:
        """Make what is not there; what is refused is made later."""
        before, self.missing = self.missing, []
        for name in before:
            made = self.report.done["make"]
            self._act("make", self._make, name)
            self.missing += [] if self.report.done["make"] > made else [name]

    def _make(self, name: str) -> None:
        spec = {"target": {"uri": f"s3://bucket/{name}"}, "scheduling": SCHEDULING, "speculation": {"algorithm": "ngram"}}
        self._call("POST", self._path("models"), self.scene.resource(name, **spec))

    def _edit(self, name: str) -> None:
        """Any of the fields that one sees in children; only numSteps needs another inspection."""
        edits: list[dict[str, Any]] = [
            {"replicas": self.random.randrange(3)},
            {"networkPolicy": {"enabled": self.random.random() < 0.5}},
            {"disruption": {"maxUnavailable": self.random.randrange(1, 4)}},
            {"service": {"port": self.random.randrange(8000, 8010)}},
            {"speculation": {"numSteps": self.random.randrange(1, 6)}},
        ]
        self._call("PATCH", self._path("models", name), {"spec": self.random.choice(edits)})

    def _replace(self, name: str) -> None:
        self._call("DELETE", self._path("models", name))
        self.missing.append(name)

    def _break_child(self, name: str) -> None:
        """Somebody deletes or edits one by hand."""
        kind = self.random.choice(["deployments", "services", "poddisruptionbudgets"])
        if self.random.random() < 0.5:
            self._call("DELETE", self._path(kind, name))
        else:
            self._call("PATCH", self._path("deployments", name), {"spec": {"replicas": 7}})

    def _crash(self, name: str) -> None:
        self.player.crash(name)

    def _kill(self) -> None:
        self._act("kill the operators", self.scene.kill_operators)

    def _restart(self) -> None:
        self._act("restart the API server", self.scene.cluster.restart_api_server)

    def _settle(self) -> None:
        """Wait until nothing is wrong any more, or for too long."""
        started = time.monotonic()
        for _ in itertools.count():
            self._make_missing()
            wrong = self._wrong()
            if not wrong or time.monotonic() - started > SETTLE_S:
                break
            time.sleep(1.0)
        self.report.figures["seconds to settle"] = round(time.monotonic() - started, 1)
        self.report.problems += wrong

    def _wrong(self) -> list[str]:
        """What is not as the specs say."""
        try:
            found = {kind: self._items(kind) for kind in ("models", *CHILDREN)}
        except (OSError, HTTPException) as error:
            return [repr(error)]
        models = found.pop("models")
        wrong = [f"{name}: gone" for name in self.names if name not in models]
        for name, model in models.items():
            children = {kind: items.get(name) for kind, items in found.items()}
            wrong += [f"{name}: {problem}" for problem in problems(model, children, found["jobs"])]
        owners = {model["metadata"]["uid"] for model in models.values()}
        orphans = [f"{kind} {name}" for kind, items in found.items() for name, one in items.items() if is_orphan(one, owners)]
        return wrong + [f"left over: {orphan}" for orphan in orphans]

    def _look(self) -> None:
        """Objects of others, and Events."""
        for name, before in self.foreign.items():
            now = self.api.get(self._path("services", f"foreign-{name}"))
            mark = now and (now["metadata"]["uid"], now["metadata"]["resourceVersion"])
            self.report.problems += [] if mark == before else [f"foreign-{name} was touched"]
        events = self.api.items(f"/api/v1/namespaces/{NAMESPACE}/events")
        ours = [one for one in events if one["source"].get("component") == "paceline-operator"]
        per_model = Counter(one["involvedObject"]["uid"] for one in ours)
        most = max(per_model.values(), default=0)
        told = sum(one["count"] for one in ours)
        self.report.figures |= {
            "Events": len(ours),
            "told": told,
            "most of one model": most,
            "foreign objects": len(self.foreign),
        }
        self.report.figures["crashes played"] = self.player.num_crashes
        if most > MAX_EVENTS_OF_MODEL or not ours:
            self.report.problems.append(f"{most} Events of one model")

    def _make_foreign(self, name: str) -> tuple[str, str]:
        """An object of somebody else's with the labels of a model's children; (uid, resourceVersion)."""
        labels = {"app.kubernetes.io/managed-by": "paceline-operator", "paceline.dev/model": name}
        metadata = {"name": f"foreign-{name}", "labels": {**labels, "paceline.dev/component": "server"}}
        body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 1}]}}
        answer = self.api.request("POST", self._path("services"), body)
        assert answer.status == 201, answer.text
        made = answer.json()["metadata"]
        return made["uid"], made["resourceVersion"]

    def _items(self, kind: str) -> dict[str, dict[str, Any]]:
        return {one["metadata"]["name"]: one for one in self.api.items(self._path(kind))}

    def _path(self, kind: str, name: str = "") -> str:
        folder = MODELS.format(NAMESPACE) if kind == "models" else f"{CHILDREN[kind]}/namespaces/{NAMESPACE}/{kind}"
        return f"{folder}/{name}" if name else folder


ACTIONS = [Soak._edit, Soak._crash, Soak._break_child, Soak._replace]
WEIGHTS = [8, 4, 2, 1]


class RefusedError(Exception):
    """The API server, or the webhook behind it, said no."""


def problems(model: dict[str, Any], children: dict[str, Any], jobs: dict[str, Any]) -> list[str]:
    """What of one model is not as its spec says."""
    spec, status, metadata = model["spec"], model.get("status", {}), model["metadata"]
    conditions = {one["type"]: (one["status"], one["reason"]) for one in status.get("conditions", [])}
    deployment, budget = children["deployments"], children["poddisruptionbudgets"]
    if deployment is None or budget is None or children["services"] is None:
        return [f"no children, {conditions.get('Ready')}"]
    replicas = spec.get("replicas", 1)
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    steps = spec["speculation"].get("numSteps")
    ready = ("True", "Serving") if replicas else ("False", "ScaledToZero")
    own = [name for name, job in jobs.items() if job["metadata"]["labels"]["paceline.dev/model"] == metadata["name"]]
    expectations = {
        "generation": (metadata["generation"], status.get("observedGeneration")),
        "replicas": (replicas, deployment["spec"]["replicas"]),
        "ready pods": (replicas, status.get("readyReplicas")),
        "numSteps": (steps is not None, "--speculative-num-steps" in arguments),
        "budget": (spec.get("disruption", {}).get("maxUnavailable", 1), budget["spec"]["maxUnavailable"]),
        "port": (spec.get("service", {}).get("port", 8000), children["services"]["spec"]["ports"][0]["port"]),
        "policy": (spec.get("networkPolicy", {}).get("enabled", False), children["networkpolicies"] is not None),
        "Progressing": (("False", "Settled"), conditions.get("Progressing")),
        "Ready": (ready, conditions.get("Ready")),
        "Jobs": (True, len(own) <= 1),
    }
    wrong = [f"{what}: {want} is {got}" for what, (want, got) in expectations.items() if want != got]
    if steps is not None and str(steps) not in arguments:
        wrong.append(f"numSteps {steps} is not in {arguments}")
    return wrong


def is_orphan(found: dict[str, Any], owners: set[str]) -> bool:
    """Whether an object of a model that is gone is still there."""
    references = found["metadata"].get("ownerReferences", [])
    return any(one["kind"] == "SpeculativeModel" and one["uid"] not in owners for one in references)


def soak(cluster: Cluster, minutes: float, num_models: int, seed: int) -> Report:
    """Install the chart, soak, uninstall."""
    with installed(cluster, "runtime.image.repository=stub/runtime"), models_namespace(cluster, NAMESPACE):
        scene = Scene(cluster, NAMESPACE)
        report = Soak(scene, num_models, seed).run(minutes * 60)
        scene.kubectl("delete", "specm", "--all", "--wait=false")
        scene.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        cluster.kubectl("delete", "node", "ghost", "--ignore-not-found")
    return report


def main() -> int:
    """Run it on a cluster of its own and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    cluster = Cluster.start(folder / "c")
    try:
        cluster.add_node("node-1", gpus=2)
        report = soak(cluster, options.minutes, options.models, options.seed)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    for what in ("done", "refused", "figures"):
        print(f"{what}: {json.dumps(getattr(report, what))}", flush=True)
    print("\n".join(["wrong:", *report.problems]) if report.problems else "every model is what its spec says")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
