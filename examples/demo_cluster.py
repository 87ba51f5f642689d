"""`make demo-cluster`: the operator from `helm install` to tokens, in a Kubernetes cluster made of processes.

It starts the cluster that the tests use, types the commands that a user would type, shows what they print and how long
each step took, and stops everything, also after Ctrl-C or a failure. It sees only what kubectl, helm and HTTP show.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from cluster_stage import ASSETS, COMMAND_LIMIT_S, WIDTH, Terminal, running, say, step
from operator_scene import CHILD_KINDS, RELEASE_NAMESPACE, Scene
from processcluster import ClusterError, missing_pieces
from source_tree import ROOT

from paceline_runtime.demo import STREAMED as QUESTION
from paceline_runtime.demo import Answer, find_model
from paceline_runtime.errors import ConfigError

INSTALLER = ROOT.parent / "shared" / "kube" / "install"
MODEL, NAMESPACE = "smollm2", "default"
EXAMPLE = "examples/smollm2.yaml"
MILESTONES = ("Accepted", "Compatible", "Available", "Ready")
# A resource that fails one of these waits for an edit, so the demo need not wait any longer.
VERDICTS = ("Accepted", "Compatible")
# Images are names for this checkout here; acceptance is read often, since the model lives for a minute.
SETTINGS = ("image.tag=test", "runtime.image.tag=test", "operator.acceptancePeriodSeconds=5")
WHEN_IT_FAILED = (
    "kubectl get pods -A -o wide",
    f"kubectl logs --namespace {RELEASE_NAMESPACE} -l app.kubernetes.io/component=operator --prefix --tail=20",
    "kubectl describe specm",
)
INSTALL_LIMIT_S = 120
# SmolLM2 answers within seconds of its start; a busy machine makes that minutes.
LOAD_LIMIT_S = 240
# Controllers learn of a kind that is new in the cluster every 30 s, the garbage collector among them; then comes the drain.
DELETE_LIMIT_S = 90
MAX_TOKENS = 80

Conditions = Mapping[str, tuple[str, str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every step succeeded, 1 with the reason on standard error when one did not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="demo_cluster.py", description=__doc__)
    parser.add_argument("--stay", action="store_true", help="wait for Enter before the model is deleted, to look around")
    arguments = parser.parse_args(argv)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    try:
        prepare()
        say("A Kubernetes cluster out of processes of this machine: a real control plane, no images, no root. About a minute.")
        with running(WHEN_IT_FAILED) as terminal:
            tell(terminal, arguments.stay)
    except (ClusterError, ConfigError, OSError, subprocess.TimeoutExpired) as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo-cluster: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def prepare() -> None:
    """Look for all that is needed before anything starts. Raises ClusterError or ConfigError with the remedy."""
    if folder := find_assets(os.environ, INSTALLER):
        os.environ[ASSETS] = folder
    if problem := missing_pieces():
        raise ClusterError(problem)
    find_model()


def find_assets(environment: Mapping[str, str], installer: Path) -> str | None:
    """The folder of etcd, kube-apiserver and so on: what the environment names, else what the installer prints, else none."""
    if folder := environment.get(ASSETS):
        return folder
    if not os.access(installer, os.X_OK):
        return None
    done = subprocess.run([installer], capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    if done.returncode:
        raise ClusterError(f"{installer} failed, set {ASSETS} instead: {done.stderr.strip()}")
    return done.stdout.strip()


def tell(terminal: Terminal, stays: bool) -> None:
    """The story, step by step."""
    started_s = time.monotonic()
    scene = Scene(terminal.cluster, NAMESPACE)
    say("\n  To look around from another terminal meanwhile:")
    say(f"  export KUBECONFIG={terminal.cluster.kubeconfig} PATH={os.environ[ASSETS]}:$PATH")
    install(terminal)
    fill_claim(terminal, scene)
    serve(terminal, scene)
    ask(terminal, scene)
    show_acceptance(terminal, scene)
    if stays:
        with contextlib.suppress(EOFError):
            input("\nPress Enter to delete the model and to stop. ")
    delete(terminal, scene)
    say(f"\nFrom an empty cluster to tokens and back: {time.monotonic() - started_s:.1f} s.")


def install(terminal: Terminal) -> None:
    """The chart as it ships; its operator runs as two pods."""
    with step("Install the chart: custom resource, rights, webhook, two operator pods"):
        settings = " ".join(f"--set {setting}" for setting in SETTINGS)
        options = f"--create-namespace {settings} --hide-notes --wait --timeout {INSTALL_LIMIT_S}s"
        terminal.type(f"helm install paceline charts/paceline --namespace {RELEASE_NAMESPACE} {options}")
        terminal.type(f"kubectl get pods --namespace {RELEASE_NAMESPACE}")


def fill_claim(terminal: Terminal, scene: Scene) -> None:
    """The example takes its model from a claim named `models`."""
    with step("Put a model into a volume claim (here a claim is a folder)"):
        scene.fill_claim()
        say(f"  copied {find_model().name} to smollm2/ of the claim `models`")
        terminal.type("kubectl get persistentvolumeclaims")


def serve(terminal: Terminal, scene: Scene) -> None:
    """Apply, and conditions as they turn true."""
    with step("Apply the example, and watch its conditions turn true"):
        terminal.type(f"kubectl apply -f {EXAMPLE}")
        watch_conditions(scene)
        terminal.type(f"kubectl wait specm/{MODEL} --for=condition=Ready --timeout=60s")
        terminal.type("kubectl get specm -o wide")
        terminal.type(f"kubectl get deployments,services,pods -l paceline.dev/model={MODEL}")


def watch_conditions(scene: Scene) -> None:
    """Print each milestone at the moment it is first seen true. Raises ClusterError when the resource was refused."""
    started_s = time.monotonic()
    seen: list[str] = []

    def all_seen() -> bool:
        conditions = scene.conditions(MODEL)
        for type_ in newly_true(conditions, seen):
            seen.append(type_)
            say(f"  {time.monotonic() - started_s:6.1f} s  {type_:<10}  {conditions[type_][2]}")
        return len(seen) == len(MILESTONES)

    scene.cluster.wait_for(all_seen, f"{MODEL} is Ready", LOAD_LIMIT_S)


def newly_true(conditions: Conditions, seen: Sequence[str]) -> list[str]:
    """Milestones that are true and not yet seen, in their order. Raises ClusterError with the message of a refusal."""
    for type_ in VERDICTS:
        status, reason, message = conditions.get(type_, ("Unknown", "", ""))
        if status == "False":
            raise ClusterError(f"{type_} is False, {reason}: {message}")
    return [type_ for type_ in MILESTONES if type_ not in seen and conditions.get(type_, ("",))[0] == "True"]


def ask(terminal: Terminal, scene: Scene) -> None:
    """One chat completion through the Service, its text and its speed."""
    with step("Ask a question through the Service"):
        url = f"{scene.model(MODEL)['status']['endpoint']}/chat/completions"
        message = {"role": "user", "content": QUESTION}
        body = {"model": MODEL, "messages": [message], "max_tokens": MAX_TOKENS, "temperature": 0}
        # The gate of the test cluster stands where others have an Ingress or a port-forward.
        say(f"  $ curl -p -x http://127.0.0.1:{terminal.cluster.gate_port} {url} -d {shlex.quote(json.dumps(body))}\n")
        started_s = time.monotonic()
        response = terminal.cluster.http(url, body)
        if response.status != 200:
            raise ClusterError(f"{url}: status {response.status}: {response.text}")
        answer = Answer(response.json()["usage"], None, time.monotonic() - started_s)
        say(textwrap.indent(textwrap.fill(response.json()["choices"][0]["message"]["content"], WIDTH), "    "))
        speed = answer.num_tokens / answer.total_s
        say(f"\n  {answer.num_tokens} tokens, {speed:.1f} tokens/s, {answer.tokens_per_step:.2f} tokens per step\n")


def show_acceptance(terminal: Terminal, scene: Scene) -> None:
    """The operator reads it from the pods' metrics."""
    with step("See in the resource how much of what was guessed the model agreed with (ACCEPT)"):
        scene.cluster.wait_for(lambda: scene.model(MODEL).get("status", {}).get("acceptance"), "acceptance is known", 60)
        terminal.type("kubectl get specm -o wide")


def delete(terminal: Terminal, scene: Scene) -> None:
    """No finalizers: the garbage collector follows the owner references."""
    with step("Delete it, and nothing is left (a garbage collector takes up to 30 s to learn of a new kind)"):
        terminal.type(f"kubectl delete -f {EXAMPLE}")
        scene.cluster.wait_for(lambda: not scene.children(MODEL), f"nothing of {MODEL} is left", DELETE_LIMIT_S)
        terminal.type(f"kubectl get {CHILD_KINDS} -l paceline.dev/model={MODEL}")
        terminal.type("kubectl get specm,persistentvolumeclaims,persistentvolumes")


if __name__ == "__main__":
    sys.exit(main())
