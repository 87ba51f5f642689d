"""The command lines of etcd, API server, controller manager and scheduler.

Pure: the supervisor starts and stops what these functions describe. Flags that look odd carry their reason.
"""

from processcluster.binaries import kubernetes_program
from processcluster.layout import API_ADDRESS, API_PORT, BRIDGE_ADDRESS, SERVICE_RANGE, Layout

ETCD_CLIENTS = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"


def etcd(layout: Layout) -> list[str]:
    return [
        kubernetes_program("etcd"),
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={ETCD_CLIENTS}",
        f"--advertise-client-urls={ETCD_CLIENTS}",
        f"--listen-peer-urls={ETCD_PEERS}",
        f"--initial-advertise-peer-urls={ETCD_PEERS}",
        f"--initial-cluster=default={ETCD_PEERS}",
        "--unsafe-no-fsync",
    ]


def api_server(layout: Layout) -> list[str]:
    keys = layout.certificates
    return [
        kubernetes_program("kube-apiserver"),
        f"--etcd-servers={ETCD_CLIENTS}",
        # The kubernetes service's own address: pods find it there without a forwarder.
        f"--bind-address={API_ADDRESS}",
        f"--secure-port={API_PORT}",
        # Endpoints refuse loopback addresses, and 10.0.0.1 is a service address.
        f"--advertise-address={BRIDGE_ADDRESS}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--tls-cert-file={keys / 'server.crt'}",
        f"--tls-private-key-file={keys / 'server.key'}",
        f"--cert-dir={keys}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={keys / 'service-accounts.key'}",
        f"--service-account-key-file={keys / 'service-accounts.key'}",
        f"--token-auth-file={keys / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        # Webhooks named by service are called at a ready endpoint's address, so they need no kube-proxy.
        "--enable-aggregator-routing=true",
    ]


def controller_manager(layout: Layout) -> list[str]:
    keys = layout.certificates
    return [
        kubernetes_program("kube-controller-manager"),
        f"--kubeconfig={layout.inner_kubeconfig}",
        f"--service-account-private-key-file={keys / 'service-accounts.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={keys}",
    ]


def scheduler(layout: Layout) -> list[str]:
    return [
        kubernetes_program("kube-scheduler"),
        f"--kubeconfig={layout.inner_kubeconfig}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--cert-dir={layout.certificates}",
    ]
