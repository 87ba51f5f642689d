"""The handle on a cluster from outside of its namespace: what tests and the command line hold.

Starts and stops the supervisor, speaks to it, and gives kubectl, helm, API calls and HTTP into the namespace. Nothing
here runs inside; see `supervisor` for that.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from processcluster import lifeline
from processcluster.binaries import SYSTEM_PATH, kubernetes_program, missing_pieces
from processcluster.client import ApiClient, HttpAnswer, http_through_gate
from processcluster.credentials import write_credentials
from processcluster.images import Image, checkout_images, read_images, write_images
from processcluster.layout import Layout

Found = TypeVar("Found")
PACKAGE_PARENT = Path(__file__).resolve().parents[1]
POLL_S = 0.1
COMMAND_LIMIT_S = 120


class ClusterError(Exception):
    """A command failed, the cluster did not start, or a condition did not come true in time."""


class Cluster:
    """A running cluster below `root`: `start` makes one, `connect` finds one. Each handle keeps it alive until it ends.

    Raises ClusterError when none runs there.
    """

    def __init__(self, root: Path) -> None:
        self.files = Layout(root)
        self._api: ApiClient | None = None
        try:
            self._lifeline = lifeline.hold(self.files.lifeline)
        except OSError as error:
            raise ClusterError(f"no cluster runs in {root} ({error})") from None

    @classmethod
    def start(cls, root: Path, *, detached: bool = False) -> Self:
        """Starts the control plane in an empty folder and waits until it is ready.

        The cluster ends with the last process that holds a handle, unless it is `detached`. Raises ClusterError when
        it does not come up.
        """
        if problem := missing_pieces():
            raise ClusterError(problem)
        files = Layout(root)
        # It holds the administrator's token.
        files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        reader = lifeline.create(files.lifeline)
        cluster = cls(root)
        try:
            _spawn(files, reader, detached)
            _wait_until(lambda: files.control.exists() or not lifeline.has_reader(cluster._lifeline))
            if not lifeline.has_reader(cluster._lifeline):
                raise ClusterError(f"the supervisor ended: {files.log('supervisor').read_text()}")
            cluster.add_images(checkout_images(root / "bin"))
            cluster._control("wait-ready")
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def connect(cls, root: Path) -> Self:
        """A further handle on a running cluster, in any process. Raises ClusterError when there is none."""
        return cls(root)

    @property
    def kubeconfig(self) -> Path:
        """For any program on this machine: the API server is reached through a port of 127.0.0.1."""
        return self.files.kubeconfig

    @property
    def api(self) -> ApiClient:
        """Blocking JSON calls to the API server as administrator."""
        if self._api is None:
            self._api = ApiClient(self.kubeconfig)
        return self._api

    @property
    def environment(self) -> dict[str, str]:
        """Environment for programs that talk to this cluster; caches stay inside its folder."""
        cache = str(self.files.root / "cache")
        own = {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": cache, "PATH": SYSTEM_PATH}
        return {**os.environ, **own, **{f"HELM_{kind}_HOME": cache for kind in ("CACHE", "CONFIG", "DATA")}}

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """Standard output of one kubectl call. Raises ClusterError with its standard error."""
        return self._run([kubernetes_program("kubectl"), *args], input)

    def helm(self, *args: str) -> str:
        """Standard output of one helm call. Raises ClusterError with its standard error."""
        return self._run([kubernetes_program("helm"), *args], None)

    def apply(self, manifest: str, *args: str) -> str:
        """kubectl apply of YAML text."""
        return self.kubectl("apply", "-f", "-", *args, input=manifest)

    def http(
        self, url: str, body: object = None, method: str | None = None, headers: dict[str, str] | None = None
    ) -> HttpAnswer:
        """One HTTP request from inside the namespace to an address or to `NAME.NAMESPACE.svc`."""
        return http_through_gate(self.gate_port, url, body, method, headers or {})

    @property
    def gate_port(self) -> int:
        """The CONNECT proxy on 127.0.0.1 that leads inside, for `curl -px http://127.0.0.1:PORT` and for streaming."""
        return int(self.files.gate.read_text())

    def wait_for(self, predicate: Callable[[], Found | None], what: str, timeout_s: float = 30) -> Found:
        """The first true result of the predicate. Raises ClusterError that names `what` and shows all pods."""
        deadline = time.monotonic() + timeout_s
        while True:
            if found := predicate():
                return found
            if time.monotonic() > deadline:
                pods = self.kubectl("get", "pods", "-A", "-o", "wide")
                raise ClusterError(f"not within {timeout_s} s: {what}\n{self.status()}\n{pods}")
            time.sleep(POLL_S)

    @property
    def images(self) -> dict[str, Image]:
        """The image table: what pods may name."""
        return read_images(self.files.images) if self.files.images.exists() else {}

    def add_images(self, images: dict[str, Image]) -> None:
        """Adds to the image table, for containers that start from now on."""
        write_images(self.files.images, self.images | images)

    def add_node(self, name: str = "node-1", gpus: int = 2) -> None:
        """Starts a kubelet whose node has `gpus` of nvidia.com/gpu, and waits until it is registered."""
        self._control("add-node", name=name, gpus=gpus)

    def restart_api_server(self) -> None:
        """Kills the API server, starts it again and returns when it is ready and its clients know."""
        self._control("restart-api-server")

    def stop_part(self, part: str, signal: str = "SIGKILL") -> None:
        """Stops one of the parts that `status` lists, for tests of outages."""
        self._control("stop", part=part, signal=signal)

    def start_part(self, part: str) -> None:
        """Starts a stopped part again; an API server is ready on return."""
        self._control("start", part=part)

    def status(self) -> dict[str, str]:
        """Part -> running, stopped or ended."""
        return self._control("status")

    def stop(self) -> None:
        """Takes the cluster down, whoever else holds it, and returns when its last process is gone."""
        if lifeline.has_reader(self._lifeline):
            self._control("down")
            _wait_until(lambda: not lifeline.has_reader(self._lifeline))
        self.release()

    def release(self) -> None:
        """Ends this handle; a cluster that nobody holds any more goes down by itself, unless it is detached."""
        if self._api is not None:
            self._api.close()
        os.close(self._lifeline)

    def _run(self, argv: list[str], text: str | None) -> str:
        done = subprocess.run(argv, input=text, env=self.environment, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
        if done.returncode:
            raise ClusterError(f"{Path(argv[0]).name} {' '.join(argv[1:])}: {done.stderr.strip()}")
        return done.stdout

    def _control(self, action: str, **parameters: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.files.control))
            except OSError as error:
                raise ClusterError(f"no cluster runs in {self.files.root} ({error})") from None
            connection.settimeout(COMMAND_LIMIT_S)
            connection.sendall(json.dumps({"do": action, **parameters}).encode() + b"\n")
            with connection.makefile() as lines:
                reply: dict[str, Any] = json.loads(lines.readline() or '{"error": "the supervisor went away"}')
        if "error" in reply:
            raise ClusterError(f"{action}: {reply['error']} (logs are in {self.files.root / 'log'})")
        return reply


def _spawn(files: Layout, reader: int, detached: bool) -> None:
    """Opens the gates and starts the supervisor behind them; `reader` is its standard input and closed here."""
    with socket.create_server(("127.0.0.1", 0)) as api, socket.create_server(("127.0.0.1", 0)) as gate:
        try:
            write_credentials(files, api.getsockname()[1])
            files.gate.write_text(str(gate.getsockname()[1]))
            _run_supervisor(files, reader, api.fileno(), gate.fileno(), detached)
        finally:
            os.close(reader)


def _run_supervisor(files: Layout, reader: int, api_fd: int, gate_fd: int, detached: bool) -> None:
    """Starts it in namespaces of its own, as nobody's child."""
    log = files.log("supervisor")
    log.parent.mkdir(parents=True, exist_ok=True)
    namespaces = ["unshare", "--map-root-user", "--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
    command = [sys.executable, "-m", "processcluster.supervisor", str(files.root), f"--api-fd={api_fd}"]
    command += [f"--gate-fd={gate_fd}", *([] if detached else ["--until-eof"])]
    modules = os.pathsep.join([str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")])
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *namespaces, *command],
            check=True,
            stdin=reader,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": modules, "PATH": SYSTEM_PATH},
            pass_fds=(api_fd, gate_fd),
        )


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"the supervisor did not answer within {COMMAND_LIMIT_S} s")
        time.sleep(0.02)
