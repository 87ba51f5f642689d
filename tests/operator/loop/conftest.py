"""The real kopf loop and the real client against an emulated API server in this process.

Inputs: the emulator (`apply_emulator`), on which tests inject failures. Outputs: a running operator and what it wrote.
Not faked: kopf, the API client, the queue, every decision. Not there: schemas, controllers, garbage collection.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import kmock
import kopf
import pytest
from apply_emulator import ApplyEmulator
from kubernetes.aio import client as kubernetes_client
from operator_builders import CONFIG, make_pod, make_resource, terminated

from paceline_operator.cluster.client import Cluster, path_of
from paceline_operator.cluster.kinds import POD, Kind
from paceline_operator.loop import handlers
from paceline_operator.loop.operator import Operator
from paceline_operator.main import settings_for

WAIT_S = 20.0
MODELS = "paceline.dev/v1alpha1/speculativemodels"


class Emulated:
    """An operator on an emulated API server."""

    def __init__(self, server: ApplyEmulator, url: str) -> None:
        self.server, self.url = server, url
        config = replace(CONFIG, webhook_certificates=None, health_port=0, num_workers=2)
        self.operator = Operator(config, priority=1)

    async def run(self) -> None:
        """kopf's whole operator, until cancelled."""
        registry = kopf.OperatorRegistry()
        handlers.register(registry, with_webhook=False)
        await kopf.operator(
            registry=registry,
            settings=settings_for(self.operator.config),
            memo=kopf.Memo(operator=self.operator),
            clusterwide=True,
            identity=self.operator.config.pod_name,
        )

    def add_model(self, name: str = "demo", **metadata: Any) -> None:
        """A model that was there before the operator."""
        resource = make_resource(name=name, resourceVersion="1", **metadata)
        self.server.objects[MODELS, resource["metadata"]["namespace"], name] = resource

    async def call(self, method: str, kind: Kind, name: str, body: dict[str, Any] | None = None) -> None:
        """A request of somebody else: an edit, a deletion, a controller's status."""
        async with aiohttp.ClientSession(self.url) as session:
            headers = {"Content-Type": "application/merge-patch+json"}
            async with session.request(method, path_of(kind, "ml", name), json=body, headers=headers) as answer:
                answer.raise_for_status()

    async def create(self, kind: Kind, body: dict[str, Any]) -> None:
        """An object that somebody else makes."""
        async with aiohttp.ClientSession(self.url) as session, session.post(path_of(kind, "ml"), json=body) as answer:
            answer.raise_for_status()

    async def give_verdict(self, outcome: str = "Compatible", reason: str = "Compatible", message: str = "") -> None:
        """Play the inspect Job's pod."""
        job = (await self.until(lambda: [name for name in self.names("jobs") if "-inspect-" in name], "an inspect Job"))[-1]
        message = json.dumps({"outcome": outcome, "reason": reason, "message": message or f"it is {outcome}"})
        pod = make_pod(f"{job}-pod", "inspect", job, **terminated(message))
        owner = {"kind": "Job", "name": job, "uid": self.find("jobs", job)["metadata"]["uid"]}
        pod["metadata"] |= {"namespace": "ml", "ownerReferences": [owner]}
        pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "paceline-operator"
        await self.create(POD, {"apiVersion": "v1", **pod})

    def condition(self, type_: str, name: str = "demo") -> tuple[str, str]:
        """(status, reason) of a model's condition."""
        conditions = (self.find("speculativemodels", name) or {}).get("status", {}).get("conditions", [])
        return next(((one["status"], one["reason"]) for one in conditions if one["type"] == type_), ("", ""))

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """What the server holds under a plural and a name."""
        for (resource, _, found_name), found in self.server.objects.items():
            if resource.plural == kind and found_name == name and not found.deleted:
                return dict(found.raw)
        return None

    def names(self, kind: str) -> list[str]:
        return [
            name for (resource, _, name), found in self.server.objects.items() if resource.plural == kind and not found.deleted
        ]

    async def until(self, is_true: Callable[[], Any], what: str) -> Any:
        """The first true answer; the loop runs meanwhile."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not (found := is_true()):
                    await asyncio.sleep(0.01)
                return found
        except TimeoutError:
            raise AssertionError(f"never: {what}; writes: {self.server.writes}") from None


@pytest.fixture
async def emulated(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Emulated]:
    """The emulator with an operator that is not started yet: `running` starts it."""
    async with ApplyEmulator() as server, kmock.Server(server):
        server.declare("ScaledObject", "PodMonitor")

        async def connect(on_call: Callable[[str], None]) -> Cluster:
            configuration = kubernetes_client.Configuration(host=str(server.url).rstrip("/"))
            return Cluster(kubernetes_client.ApiClient(configuration), on_call)

        def login(**_: Any) -> kopf.ConnectionInfo:
            return kopf.ConnectionInfo(server=str(server.url))

        # The machine's own kubeconfig must not be found.
        monkeypatch.setattr(handlers, "login", login)
        monkeypatch.setattr(Cluster, "connect", staticmethod(connect))
        yield Emulated(server, str(server.url))


@pytest.fixture
async def running(emulated: Emulated) -> AsyncIterator[Emulated]:
    """The operator runs; a model `demo` was there before it."""
    emulated.add_model()
    task = asyncio.create_task(emulated.run())
    yield emulated
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
