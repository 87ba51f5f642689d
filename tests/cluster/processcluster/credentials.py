"""Certificates, keys and kubeconfigs of one cluster, written once before its first process starts.

One throw-away CA (trustme) signs the API server's and the kubelets' certificates. The administrator is a static token.
"""

import json
import secrets
from pathlib import Path

import trustme

from processcluster.layout import API_ADDRESS, API_PORT, Layout


def write_credentials(layout: Layout, gate_api_port: int) -> None:
    """Writes all of them below `layout.root`; the outer kubeconfig goes to 127.0.0.1:`gate_api_port`."""
    folder = layout.certificates
    folder.mkdir(parents=True)
    authority = trustme.CA(organization_name="processcluster")
    authority.cert_pem.write_to_path(folder / "ca.crt")
    names = ("kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "127.0.0.1", API_ADDRESS)
    _write_pair(authority.issue_cert(*names), folder / "server")
    _write_pair(authority.issue_cert("kubelet"), folder / "kubelet")
    _write_pair(authority.issue_cert("service-accounts"), folder / "service-accounts")
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    layout.inner_kubeconfig.write_text(_kubeconfig(f"https://{API_ADDRESS}:{API_PORT}", layout, token))
    layout.kubeconfig.write_text(_kubeconfig(f"https://127.0.0.1:{gate_api_port}", layout, token))


def _write_pair(pair: trustme.LeafCert, stem: Path) -> None:
    pair.private_key_pem.write_to_path(stem.with_suffix(".key"))
    pair.cert_chain_pems[0].write_to_path(stem.with_suffix(".crt"))


def _kubeconfig(server: str, layout: Layout, token: str) -> str:
    """A kubeconfig as JSON (which is YAML too), so that reading one needs no YAML parser."""
    name = "processcluster"
    cluster = {"server": server, "certificate-authority": str(layout.certificates / "ca.crt")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": "admin"}}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
    }
    return json.dumps(document, indent=1)
