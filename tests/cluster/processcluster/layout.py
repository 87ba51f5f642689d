"""Where a cluster keeps its files, and its addresses: the facts that all of its processes share.

Pure values; nobody here opens a file. Addresses are the same in every cluster, since each has a network namespace of
its own.
"""

from dataclasses import dataclass
from pathlib import Path

SERVICE_RANGE = "10.0.0.0/22"
API_ADDRESS = "10.0.0.1"
API_PORT = 443
POD_RANGE_PREFIX = 16
BRIDGE = "cni0"
BRIDGE_ADDRESS = "10.244.0.1"
# The bridge would otherwise take the lowest MAC of its ports, and change it as pods come and go: peers that have the
# old one cached stalled for 14 to 25 s.
BRIDGE_MAC = "0a:58:0a:f4:00:01"
# In the pod range because the API server may hand out any service address.
DNS_ADDRESS = BRIDGE_ADDRESS
CLUSTER_DOMAIN = "cluster.local"
KUBELET_PORT = 10250
STORAGE_CLASS = "folder"


@dataclass(frozen=True)
class Layout:
    """The files of one cluster below `root`."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        """For programs outside of the namespace (the API server through the gate)."""
        return self.root / "kubeconfig"

    @property
    def inner_kubeconfig(self) -> Path:
        """For programs inside of the namespace."""
        return self.root / "inner-kubeconfig"

    @property
    def gate(self) -> Path:
        """The port of the CONNECT proxy into the namespace, as text."""
        return self.root / "gate-port"

    @property
    def control(self) -> Path:
        """The supervisor's socket."""
        return self.root / "control.sock"

    @property
    def lifeline(self) -> Path:
        """The FIFO that keeps the cluster alive."""
        return self.root / "lifeline"

    @property
    def images(self) -> Path:
        """The image table, JSON; read at every container start."""
        return self.root / "images.json"

    @property
    def certificates(self) -> Path:
        return self.root / "certificates"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def claims(self) -> Path:
        """One folder per provisioned volume."""
        return self.root / "claims"

    @property
    def pods(self) -> Path:
        """One folder per pod uid: volumes, /etc files, container logs."""
        return self.root / "pods"

    def log(self, part: str) -> Path:
        return self.root / "log" / f"{part}.log"
