"""How the operator does with hundreds of models: `python tests/cluster/bench_scale.py [--models 500]`.

Starts a cluster of processes and the operator as a process of this machine (no pods are run: there is no node), plays the
inspect Jobs' pods itself by statuses, and prints: time from apply to Deployment (median, p99), the operator's processor
time and memory, API calls a minute when idle, and whether anything changed while idle. Not a test: it takes minutes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cluster"), str(ROOT / "tests" / "support")]

from processcluster import Cluster  # noqa: E402

NAMESPACE = "default"
MODELS = f"/apis/paceline.dev/v1alpha1/namespaces/{NAMESPACE}/speculativemodels"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VERDICT = json.dumps({"outcome": "Compatible", "reason": "Compatible", "message": "fits"})
HEALTH_PORT = 18099


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--idle-s", type=float, default=60.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    cluster = Cluster.start(folder / "c")
    try:
        for crd in sorted((ROOT / "crds").glob("*.yaml")):
            cluster.kubectl("apply", "--server-side", "-f", str(crd))
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd.stem}")
        measure(cluster, options.models, options.idle_s)
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(cluster: Cluster, num_models: int, idle_s: float) -> None:
    """Apply all models at once, wait for their Deployments, then watch the operator do nothing."""
    with (cluster.files.root / "operator.log").open("wb") as log:
        operator = subprocess.Popen([sys.executable, "-m", "paceline_operator"], env=environment(cluster), stderr=log)
    process = psutil.Process(operator.pid)
    kubelet = threading.Event()
    player = threading.Thread(target=play_inspect_pods, args=(cluster, kubelet))
    player.start()
    try:
        applied = apply_all(cluster, num_models)
        delays = wait_for_deployments(cluster, applied)
        report("apply to Deployment", f"median {statistics.median(delays):.1f} s, p99 {quantile(delays, 0.99):.1f} s")
        report("all Deployments after", f"{max(delays):.1f} s")
        wait_until_quiet(operator_calls)
        report("processor time to get there", f"{sum(process.cpu_times()[:2]):.1f} s")
        report("API calls to get there", f"{operator_calls():.0f} ({operator_calls() / num_models:.1f} a model)")
        idle(cluster, process, idle_s)
    finally:
        kubelet.set()
        player.join()
        operator.terminate()
        operator.wait()


def idle(cluster: Cluster, process: psutil.Process, idle_s: float) -> None:
    """Figures of a while in which nobody asks for anything."""
    before, calls, used = versions(cluster), operator_calls(), sum(process.cpu_times()[:2])
    time.sleep(idle_s)
    minutes = idle_s / 60
    report("idle: processor", f"{(sum(process.cpu_times()[:2]) - used) / idle_s:.1%} of one core")
    report("idle: memory", f"{process.memory_info().rss / 2**20:.0f} MiB resident")
    report("idle: API calls a minute", f"{(operator_calls() - calls) / minutes:.0f}")
    after = versions(cluster)
    report("idle: models and Deployments that changed", str(sum(before[name] != after.get(name) for name in before)))


def environment(cluster: Cluster) -> dict[str, str]:
    own = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "POD_ID": "bench",
        "POD_NAMESPACE": NAMESPACE,
        "PACELINE_OPERATOR_IMAGE": "operator",
        "PACELINE_RUNTIME_IMAGE": "runtime",
        "PACELINE_HEALTH_PORT": str(HEALTH_PORT),
    }
    return {**os.environ, **own}


def apply_all(cluster: Cluster, num_models: int) -> dict[str, float]:
    """Model -> when it was created."""
    created: dict[str, float] = {}

    def create(i: int) -> None:
        name = f"model-{i}"
        spec = {"target": {"uri": f"pvc://claim/{name}"}, "speculation": {"algorithm": "ngram"}}
        body = {"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeModel", "metadata": {"name": name}, "spec": spec}
        answer = cluster.api.request("POST", MODELS, body)
        assert answer.status == 201, answer.text
        created[name] = time.monotonic()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(num_models)))
    return created


def wait_for_deployments(cluster: Cluster, applied: dict[str, float]) -> list[float]:
    """Seconds from each model's creation to its Deployment, seen by polls of half a second."""
    seen: dict[str, float] = {}
    while len(seen) < len(applied):
        time.sleep(0.5)
        for found in cluster.api.items(DEPLOYMENTS):
            seen.setdefault(found["metadata"]["name"], time.monotonic())
    return [seen[name] - at for name, at in applied.items()]


def play_inspect_pods(cluster: Cluster, stop: threading.Event) -> None:
    """The kubelet's part: every inspect pod ends at once with a verdict."""
    done: set[str] = set()
    selector = "?labelSelector=paceline.dev/component%3Dinspect"
    while not stop.wait(0.2):
        fresh = [pod for pod in cluster.api.items(PODS + selector) if pod["metadata"]["name"] not in done]
        for pod in fresh:
            done.add(pod["metadata"]["name"])
            state = {"terminated": {"exitCode": 0, "message": VERDICT}}
            status = {"name": "inspect", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
            body = {"status": {"phase": "Succeeded", "containerStatuses": [status]}}
            path = f"{PODS}/{pod['metadata']['name']}/status"
            cluster.api.request("PATCH", path, body, "application/strategic-merge-patch+json")


def versions(cluster: Cluster) -> dict[str, tuple[Any, Any]]:
    """(generation, resourceVersion) of every model and Deployment."""
    found = [*cluster.api.items(MODELS), *cluster.api.items(DEPLOYMENTS)]
    return {
        f"{one['spec'].get('target', 'd')}{one['metadata']['name']}": (
            one["metadata"]["generation"],
            one["metadata"]["resourceVersion"],
        )
        for one in found
    }


def operator_calls() -> float:
    """Requests to the API server that the operator has counted."""
    with urlopen(f"http://127.0.0.1:{HEALTH_PORT}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("paceline_operator_api_calls_total"))


def wait_until_quiet(count: Any) -> None:
    """Until a count rests for ten seconds, leadership's own calls aside: three every three seconds."""
    last = -100.0
    while count() - last > 15:
        last = count()
        time.sleep(10)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def report(what: str, figure: str) -> None:
    print(f"{what:44} {figure}", flush=True)


if __name__ == "__main__":
    main()
