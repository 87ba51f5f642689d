"""What all pods of a kubelet share, handed to each pod worker."""

from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp

from processcluster.api import Api
from processcluster.kubelet.sandbox import Addresses
from processcluster.layout import Layout


@dataclass(frozen=True)
class Node:
    """This kubelet's identity and its means."""

    name: str
    address: str
    files: Layout
    api: Api
    probes: aiohttp.ClientSession
    pod_addresses: Addresses


def timestamp() -> str:
    """Now, as the API server writes it: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
