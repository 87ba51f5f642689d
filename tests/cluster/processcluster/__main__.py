"""The cluster as a tool: `python -m processcluster up`, `status`, `http URL`, `down`.

For people and for `make`; tests use the fixtures. Needs the parent folder on PYTHONPATH.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from processcluster.cluster import Cluster, ClusterError


def default_root() -> Path:
    """One cluster a user, unless --root names another place."""
    return Path(os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())) / f"processcluster-{os.getuid()}"


def up(arguments: argparse.Namespace) -> None:
    """Starts a cluster with one node; in the foreground it lives until Ctrl-C."""
    _clear(arguments.root)
    cluster = Cluster.start(arguments.root, detached=not arguments.foreground)
    cluster.add_node("node-1", gpus=arguments.gpus)
    print(_how_to_use(cluster, arguments.gpus), flush=True)
    if arguments.foreground:
        endings = {signal.SIGINT, signal.SIGTERM}
        # Blocked, or they would end this process instead of being waited for.
        signal.pthread_sigmask(signal.SIG_BLOCK, endings)
        signal.sigwait(endings)
        cluster.stop()


def down(arguments: argparse.Namespace) -> None:
    """Ends the cluster's processes and removes its folder."""
    Cluster.connect(arguments.root).stop()
    shutil.rmtree(arguments.root, ignore_errors=True)
    print("the cluster is gone")


def status(arguments: argparse.Namespace) -> None:
    """Shows the parts, the nodes and the pods."""
    cluster = Cluster.connect(arguments.root)
    for part, state in cluster.status().items():
        print(f"{part:20} {state}")
    print(cluster.kubectl("get", "nodes,pods", "-A", "-o", "wide"), end="")


def http(arguments: argparse.Namespace) -> None:
    """Sends one request from inside, with a body as POST; the text goes to standard output."""
    answer = Cluster.connect(arguments.root).http(arguments.url, arguments.data)
    print(answer.text)
    if answer.status >= 400:
        raise ClusterError(f"{arguments.url}: status {answer.status}")


def _clear(root: Path) -> None:
    """Removes what a cluster that was killed left behind. Raises ClusterError when it still runs."""
    if not root.exists():
        return
    try:
        Cluster.connect(root)
    except ClusterError:
        if not (root / "kubeconfig").exists() and any(root.iterdir()):
            raise ClusterError(f"--root {root} is not empty and holds no cluster: name another folder") from None
        shutil.rmtree(root)
        return
    raise ClusterError(f"a cluster already runs in {root}: end it with `down`, or name another --root")


def _how_to_use(cluster: Cluster, num_gpus: int) -> str:
    return f"""A cluster runs in {cluster.files.root} (1 node, {num_gpus} GPUs that are only a number).

  export KUBECONFIG={cluster.kubeconfig} PATH=$KUBEBUILDER_ASSETS:$PATH
  kubectl get nodes

Reach a service with `curl -p -x http://127.0.0.1:{cluster.gate_port} http://NAME.NAMESPACE.svc/`.
Images of this checkout: {", ".join(cluster.images)}."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="processcluster", description=__doc__)
    parser.add_argument("--root", type=Path, default=default_root(), help="the cluster's folder (default: %(default)s)")
    commands = parser.add_subparsers(required=True)
    starting = commands.add_parser("up", help="start a cluster")
    starting.add_argument("--gpus", type=int, default=2, help="nvidia.com/gpu of the node (default: %(default)s)")
    starting.add_argument("--foreground", action="store_true", help="stay, and end the cluster at Ctrl-C")
    starting.set_defaults(act=up)
    commands.add_parser("down", help="end it").set_defaults(act=down)
    commands.add_parser("status", help="show parts, nodes and pods").set_defaults(act=status)
    asking = commands.add_parser("http", help="one request from inside the cluster")
    asking.add_argument("url", help="http://NAME.NAMESPACE.svc[:PORT]/PATH")
    asking.add_argument("--data", help="body; makes it a POST")
    asking.set_defaults(act=http)
    arguments = parser.parse_args()
    try:
        arguments.act(arguments)
    except ClusterError as error:
        print(f"processcluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
