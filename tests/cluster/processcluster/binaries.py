"""The programs that a cluster needs, where they are, and what to do when one is missing.

The Kubernetes programs come from the folder that `KUBEBUILDER_ASSETS` names and from nowhere else; bubblewrap and
iproute2 come from PATH. Called by the pytest fixtures and by the command line before anything starts.
"""

import os
import shutil
import subprocess
from pathlib import Path

KUBERNETES_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
SYSTEM_PROGRAMS = {"bwrap": "bubblewrap", "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
# Debian keeps `ip` in /usr/sbin, which is not on the PATH of every user.
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def kubernetes_program(name: str) -> str:
    """The path of one of KUBERNETES_PROGRAMS; the folder is read from the environment at each call."""
    return str(Path(os.environ["KUBEBUILDER_ASSETS"]) / name)


def missing_pieces() -> str | None:
    """One line that says all that is missing and where it comes from, or None when a cluster can start."""
    problems = [problem for problem in (_missing_kubernetes(), _missing_packages()) if problem]
    if not problems:
        problems = [problem for problem in (_refused_namespaces(),) if problem]
    return "; ".join(problems) or None


def _missing_kubernetes() -> str | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    remedy = (
        f"a folder with {', '.join(KUBERNETES_PROGRAMS)} (setup-envtest brings the first two and kubectl, "
        "a Kubernetes release's server archive all but etcd and helm)"
    )
    if not folder:
        return f"KUBEBUILDER_ASSETS is not set: point it at {remedy}"
    absent = [name for name in KUBERNETES_PROGRAMS if not os.access(Path(folder) / name, os.X_OK)]
    if absent:
        return f"KUBEBUILDER_ASSETS={folder} lacks {', '.join(absent)}: it must be {remedy}"
    return None


def _missing_packages() -> str | None:
    packages = {package for name, package in SYSTEM_PROGRAMS.items() if not shutil.which(name, path=SYSTEM_PATH)}
    return f"not installed: {', '.join(sorted(packages))} (apt-get install them)" if packages else None


def _refused_namespaces() -> str | None:
    probe = subprocess.run(["unshare", "-rnpm", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    if probe.returncode == 0:
        return None
    return f"this machine permits no user namespaces ({probe.stderr.strip()}): see `sysctl -a | grep userns`"
