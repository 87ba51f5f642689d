"""The cluster of processes does what a cluster does: scheduling, pods, services, volumes, probes, ends."""

import json
from typing import Any

import pytest
from processcluster import Cluster

SERVE = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080, bind='0.0.0.0')"
# 503 at first; each POST turns that into 200 and back.
MOODY = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    code = 503
    def do_GET(self):
        self.send_response(Handler.code)
        self.end_headers()
    def do_POST(self):
        Handler.code = 703 - Handler.code
        self.do_GET()
http.server.test(Handler, port=8080, bind="0.0.0.0")
"""
# Runs until SIGTERM, which it answers in its own time: a program that is process 1 has no default action.
PATIENT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


def container(image: str = "python:test", **fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": image, **fields}


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    # Deletion of the namespace should not wait for programs that ignore SIGTERM.
    spec = {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": list(containers)} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": spec}


def template(made: dict[str, Any]) -> dict[str, Any]:
    """The pod as a Deployment or Job holds it."""
    return {key: made[key] for key in ("metadata", "spec")}


def answers(cluster: Cluster, url: str) -> bool:
    """Whether anything speaks HTTP there."""
    try:
        return cluster.http(url).status > 0
    except OSError:
        return False


class Namespace:
    """Shorthands over one namespace of the cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def apply(self, *objects: dict[str, Any]) -> None:
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.cluster.apply(items, "-n", self.name)

    def kubectl(self, *args: str) -> str:
        return self.cluster.kubectl(*args, "-n", self.name)

    def pods(self) -> list[dict[str, Any]]:
        return self.cluster.api.items(f"/api/v1/namespaces/{self.name}/pods")

    def status(self, name: str) -> dict[str, Any]:
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.name}/pods/{name}")
        return found["status"] if found else {}

    def state(self, name: str) -> dict[str, Any]:
        """The status of the pod's only container."""
        return self.status(name).get("containerStatuses", [{}])[0]

    def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        self.cluster.wait_for(lambda: self.status(name).get("phase") == phase, f"pod {name} is {phase}")
        return self.status(name)

    def until_ready(self, name: str) -> None:
        self.cluster.wait_for(lambda: self.state(name).get("ready"), f"pod {name} is ready")


@pytest.fixture
def here(cluster: Cluster, namespace: str) -> Namespace:
    """A fresh namespace on a cluster with one node of two GPUs."""
    return Namespace(cluster, namespace)


def test_two_of_three_gpu_pods_are_scheduled_on_two_gpus(here: Namespace):
    """The scheduler is the real one and counts the node's GPUs."""
    gpu = container(command=["python", "-c", PATIENT], resources={"limits": {"nvidia.com/gpu": "1"}})
    here.apply(*(pod(f"gpu-{i}", gpu) for i in range(3)))

    def phases() -> list[str]:
        return sorted(item["status"]["phase"] for item in here.pods())

    here.cluster.wait_for(lambda: phases() == ["Pending", "Running", "Running"], "two pods run, one is pending")
    (pending,) = [item for item in here.pods() if item["status"]["phase"] == "Pending"]
    assert "Insufficient nvidia.com/gpu" in pending["status"]["conditions"][0]["message"]


def test_a_deployment_answers_http_at_its_service(here: Namespace):
    """Two pods share port 8080, the service's address and name lead to them, and only ready ones get requests."""
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    web = pod("web", container(command=["python", "-c", SERVE], readinessProbe=ready), restartPolicy="Always")
    labels = {"app": "web"}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template(web)}
    here.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    here.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    address = here.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
    here.cluster.wait_for(lambda: answers(here.cluster, f"http://{address}/"), "the service's address answers")
    assert here.cluster.http(f"http://web.{here.name}.svc/").status == 200
    fetch = f"import urllib.request as r; print(r.urlopen('http://web.{here.name}.svc').status)"
    here.apply(pod("client", container(command=["python", "-c", fetch])))
    here.until_phase("client", "Succeeded")
    assert here.kubectl("logs", "client").strip() == "200"


def test_readiness_decides_over_endpoints(here: Namespace):
    """A pod enters the service's endpoints when its probe passes, and leaves them when it fails."""
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1}
    ports = [{"name": "http", "containerPort": 8080}]
    service = {"selector": {"app": "moody"}, "ports": [{"port": 80, "targetPort": "http"}]}
    here.apply(
        pod("moody", container(command=["python", "-c", MOODY], readinessProbe=probe, ports=ports)),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "moody"}, "spec": service},
    )
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{here.name}/endpointslices"

    def readiness() -> list[bool]:
        found = here.cluster.api.items(slices)
        return [point["conditions"]["ready"] for item in found for point in item.get("endpoints") or []]

    here.cluster.wait_for(lambda: readiness() == [False], "an endpoint that is not ready")
    here.cluster.wait_for(lambda: "running" in here.state("moody")["state"], "the container runs")
    address = f"http://{here.status('moody')['podIP']}:8080/"
    here.cluster.wait_for(lambda: answers(here.cluster, address), "the pod answers")
    for ready in (True, False):
        here.cluster.http(address, method="POST")
        here.cluster.wait_for(lambda ready=ready: readiness() == [ready], f"the endpoint is ready: {ready}")


def test_the_termination_message_of_a_job_reaches_its_pod(here: Namespace):
    """What a program writes to its termination log is in the status, and the Job completes."""
    program = "open('/dev/termination-log', 'w').write('{\"fits\": true}')"
    job = pod("job", container(command=["python", "-c", program]))
    spec = {"template": template(job), "backoffLimit": 0}
    here.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inspect"}, "spec": spec})
    here.kubectl("wait", "--for=condition=Complete", "job/inspect", "--timeout=30s")
    (finished,) = here.pods()
    assert finished["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == '{"fits": true}'


def test_environment_and_volumes_come_from_their_sources(here: Namespace):
    """Config map, secret, downward API, expansion, memory volume and token, each where the pod asks for it."""
    show = (
        "import json, os, pathlib, getpass\n"
        "token = pathlib.Path('/var/run/secrets/kubernetes.io/serviceaccount/token').read_text()\n"
        "files = {str(p): p.read_text() for p in pathlib.Path('/etc/given').glob('[a-z]*')}\n"
        "pathlib.Path('/dev/shm/written').write_text('x')\n"
        "print(json.dumps({'env': dict(os.environ), 'files': files, 'token': len(token), 'uid': os.getuid(),"
        " 'host': os.uname().nodename, 'cwd': os.getcwd(), 'user': getpass.getuser()}))"
    )
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "GREETING", "value": "hello $(NAME) $$(NAME) $(NOBODY)"},
    ]
    here.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "blue"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": {"api": "s3cret"}},
        pod(
            "shown",
            container(
                command=["python", "-c", show],
                env=env,
                envFrom=[{"configMapRef": {"name": "settings"}, "prefix": "ALL_"}],
                resources={"limits": {"memory": "1Gi"}},
                workingDir="/tmp",
                volumeMounts=[{"name": "given", "mountPath": "/etc/given"}, {"name": "shm", "mountPath": "/dev/shm"}],
                securityContext={"readOnlyRootFilesystem": True, "runAsUser": 4321, "runAsNonRoot": True},
            ),
            volumes=[
                {"name": "given", "configMap": {"name": "settings"}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            ],
        ),
    )
    address = here.until_phase("shown", "Succeeded")["podIP"]
    shown = json.loads(here.kubectl("logs", "shown"))

    assert shown["files"] == {"/etc/given/colour": "blue"}
    assert shown["token"] > 100
    assert (shown["uid"], shown["user"], shown["host"], shown["cwd"]) == (4321, "user", "shown", "/tmp")
    wanted = {"NAME": "shown", "ADDRESS": address, "COLOUR": "blue", "KEY": "s3cret", "MEMORY": "1024"}
    wanted |= {"GREETING": "hello shown $(NAME) $(NOBODY)", "ALL_colour": "blue"}
    assert {name: shown["env"].get(name) for name in wanted} == wanted
    assert "ABSENT" not in shown["env"]


def test_a_read_only_root_cannot_be_written(here: Namespace):
    """readOnlyRootFilesystem holds outside of volumes, and the error is the program's own."""
    write = "open('/tmp/free', 'w').write('x'); open('/free', 'w')"
    here.apply(
        pod(
            "sealed",
            container(
                command=["python", "-c", write],
                securityContext={"readOnlyRootFilesystem": True},
                terminationMessagePolicy="FallbackToLogsOnError",
                volumeMounts=[{"name": "tmp", "mountPath": "/tmp"}],
            ),
            volumes=[{"name": "tmp", "emptyDir": {}}],
        )
    )
    here.until_phase("sealed", "Failed")
    ended = here.state("sealed")["state"]["terminated"]
    assert ended["exitCode"] == 1
    assert "Read-only file system: '/free'" in ended["message"]


def test_a_claim_keeps_its_files_between_pods_and_goes_with_its_folder(here: Namespace):
    """The default class binds a claim to a folder; a second pod reads what the first wrote."""
    mount = [{"name": "data", "mountPath": "/mnt/models", "subPath": "smol"}]
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "models"}}]
    writer = container(command=["sh", "-c", "echo kept > /mnt/models/file"], volumeMounts=mount)
    reader = container(command=["cat", "/mnt/models/file"], volumeMounts=[mount[0] | {"readOnly": True}])
    here.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
        pod("writer", writer, volumes=volumes),
    )
    here.until_phase("writer", "Succeeded")
    here.apply(pod("reader", reader, volumes=volumes))
    here.until_phase("reader", "Succeeded")
    assert here.kubectl("logs", "reader") == "kept\n"
    (folder,) = here.cluster.files.claims.glob(f"{here.name}_*")
    here.kubectl("delete", "pod", "--all")
    here.kubectl("delete", "pvc", "models")
    here.cluster.wait_for(lambda: not folder.exists(), "the claim's folder is gone")


def test_init_containers_run_first_and_in_order(here: Namespace):
    """Each init container ends before the next begins; the main one sees their work."""
    share = [{"name": "work", "mountPath": "/work"}]
    steps = [
        {"name": f"step-{i}", "image": "busybox:test", "command": ["sh", "-c", f"echo {i} >> /work/log"], "volumeMounts": share}
        for i in range(2)
    ]
    main = container(command=["cat", "/work/log"], volumeMounts=share)
    here.apply(pod("staged", main, initContainers=steps, volumes=[{"name": "work", "emptyDir": {}}]))
    here.until_phase("staged", "Succeeded")
    assert here.kubectl("logs", "staged") == "0\n1\n"


def test_a_crashed_container_is_restarted_with_backoff(here: Namespace):
    """Restart counts rise, the last end is kept, and its log is the previous one."""
    crash = container("busybox:test", command=["sh", "-c", "echo run; exit 3"])
    here.apply(pod("crashing", crash, restartPolicy="Always"))

    def waits() -> bool:
        return here.state("crashing").get("state", {}).get("waiting", {}).get("reason") == "CrashLoopBackOff"

    here.cluster.wait_for(waits, "the container backs off")
    state = here.state("crashing")
    assert state["restartCount"] >= 1
    assert state["lastState"]["terminated"]["exitCode"] == 3
    assert here.status("crashing")["phase"] == "Running"
    assert here.kubectl("logs", "crashing", "--previous") == "run\n"


def test_a_failed_liveness_probe_restarts_the_container(here: Namespace):
    """The run that fails its probe is ended and another one begins."""
    probe = {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 1}
    here.apply(pod("deaf", container(command=["python", "-c", PATIENT], livenessProbe=probe), restartPolicy="Always"))
    here.cluster.wait_for(lambda: here.state("deaf").get("restartCount", 0) > 0, "the container is restarted")


def test_deletion_runs_pre_stop_then_sigterm_then_sigkill(here: Namespace):
    """The hook comes before SIGTERM, and a program that ignores SIGTERM is killed after the grace period."""
    note = "import pathlib, signal; log = pathlib.Path('/data/log').open('a', buffering=1)\n"
    ignore = f"{note}signal.signal(signal.SIGTERM, lambda *_: print('term', file=log))\nwhile True: signal.pause()"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /data/log"]}}}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    here.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "ends"}, "spec": claim},
        pod(
            "stubborn",
            container(
                command=["python", "-c", ignore],
                lifecycle=hook,
                volumeMounts=[{"name": "data", "mountPath": "/data"}],
                readinessProbe={"exec": {"command": ["test", "-e", "/data/log"]}, "periodSeconds": 1},
            ),
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "ends"}}],
        ),
    )
    here.until_ready("stubborn")
    here.kubectl("delete", "pod", "stubborn", "--timeout=20s")
    (folder,) = here.cluster.files.claims.glob(f"{here.name}_ends_*")
    assert (folder / "log").read_text() == "hook\nterm\n"
    assert here.pods() == []


def test_an_unknown_image_and_an_unknown_field_are_said_and_not_ignored(here: Namespace):
    """A missing image waits as a failed pull does; a field that the kubelet lacks fails the pod by name."""
    here.apply(pod("pull", container("nowhere:test")), pod("host", container(), hostNetwork=True))
    here.cluster.wait_for(
        lambda: here.state("pull").get("state", {}).get("waiting", {}).get("reason") == "ErrImagePull", "a failed pull"
    )
    assert "hostNetwork" in here.until_phase("host", "Failed")["message"]


def test_a_changed_secret_reaches_a_running_pod(here: Namespace):
    """Mounted files follow their source, as a rotated certificate must."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert"}}
    follow = "until grep -q new /cert/tls.crt; do sleep 0.1; done"
    mount = [{"name": "cert", "mountPath": "/cert", "readOnly": True}]
    here.apply(
        secret | {"stringData": {"tls.crt": "old"}},
        pod(
            "reads",
            container("busybox:test", command=["sh", "-c", follow], volumeMounts=mount),
            volumes=[{"name": "cert", "secret": {"secretName": "cert"}}],
        ),
    )
    here.until_phase("reads", "Running")
    here.apply(secret | {"stringData": {"tls.crt": "new"}})
    here.until_phase("reads", "Succeeded")


def test_pods_outlive_an_api_server_restart(here: Namespace):
    """While the API server is away pods run on; after it, deletions and new pods work."""
    here.apply(pod("before", container(command=["python", "-c", PATIENT])))
    here.until_ready("before")
    started = here.state("before")["state"]
    here.cluster.restart_api_server()
    here.apply(pod("after", container(command=["true"])))
    here.until_phase("after", "Succeeded")
    assert here.state("before")["state"] == started
    here.kubectl("delete", "pod", "before", "--timeout=20s")
