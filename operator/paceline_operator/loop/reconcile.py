"""One look at one model: read the store, let the pure parts decide, carry the decision out, publish the status.

The workers of `operator` call `reconcile`. A look may be taken at any time, any number of times, from any state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from paceline_operator import names
from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import BY_NAME, MODEL, Kind
from paceline_operator.cluster.store import Key, Store
from paceline_operator.cluster.watchdog import Watchdog
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import ApiError, GoneError, NameTakenError, SpecError
from paceline_operator.gates import caching, inspection
from paceline_operator.loop.herald import Herald
from paceline_operator.observed import ownership
from paceline_operator.observed.containers import CALM_S, looping
from paceline_operator.observed.observed import Observed
from paceline_operator.observed.waits import waits
from paceline_operator.planning.desired import Desired, chosen_image, desired, inherit
from paceline_operator.planning.drift import Remainders
from paceline_operator.planning.plan import Plan, plan
from paceline_operator.spec.model import Model, parse
from paceline_operator.status import acceptance
from paceline_operator.status.events import event
from paceline_operator.status.status import Findings, Status, changes, status_of, status_of_invalid
from paceline_operator.status.wording import bare

Object = dict[str, Any]
logger = logging.getLogger(__name__)
# Refusals that a retry alone does not mend: the status tells of them, and the queue tries again slowly. A conflict (409) is no
# refusal: an object went or came since the operator looked.
REFUSALS = frozenset({400, 403, 405, 422})
# What the API server says of a status that does not fit its schema.
UNREADABLE = frozenset({400, 422})
# Without these a pod would be open to everybody, or would write into a claim of somebody else.
BEFORE_PODS = frozenset({"NetworkPolicy", "PersistentVolumeClaim"})
# After so many failures in a row the status tells of a failure as of a refusal (a full address range is a 500).
PATIENCE = 4


class Counting(Protocol):
    """Where acceptance figures come from: `Scraper`, or a test's stand-in."""

    async def counters(self, pods: Sequence[Object]) -> list[acceptance.Counters]: ...


@dataclass(frozen=True)
class Outcome:
    """How a reconcile ended. `trouble` says why children could not be applied, `look_again_s` when to look anew."""

    look_again_s: float | None = None
    trouble: str = ""


class Reconciler:
    """The things that a reconcile needs. `now` is the wall clock."""

    def __init__(
        self,
        config: OperatorConfig,
        cluster: Cluster,
        store: Store,
        scraper: Counting,
        watchdog: Watchdog,
        now: Callable[[], datetime],
    ) -> None:
        self._config, self._cluster, self._store = config, cluster, store
        self._scraper, self._watchdog, self._now = scraper, watchdog, now
        self._sampled_at: dict[Key, float] = {}
        # What applies have left different, and what was made of the last status: neither is written again.
        self._remainders: dict[Key, Remainders] = {}
        self._published: dict[Key, tuple[Status, Status]] = {}
        self._herald = Herald(cluster, time.monotonic)
        self.known_kinds: frozenset[str] = frozenset()

    async def reconcile(self, key: Key, num_failures: int = 0) -> Outcome:
        """Bring one model a step forward. Raises ApiError when the API server cannot do it now.

        `num_failures` counts the attempts in a row that ended so.
        """
        resource = self._store.model(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return Outcome()
        previous: Status = resource.get("status") or {}
        try:
            model = parse(resource)
        except SpecError as error:
            generation = resource["metadata"].get("generation", 0)
            deployment = self._store.observed(key, resource["metadata"]["uid"]).get("Deployment", key.name)
            await self._publish(resource, status_of_invalid(error.problems, previous, deployment, generation, self._now()))
            return Outcome()
        return await self._step(resource, model, previous, is_patient=num_failures < PATIENCE)

    def _forget(self, key: Key) -> None:
        """The model is gone."""
        self._sampled_at.pop(key, None)
        self._remainders.pop(key, None)
        self._published.pop(key, None)
        self._herald.forget(key)

    async def _step(self, resource: Object, model: Model, previous: Status, *, is_patient: bool) -> Outcome:
        now, observed = self._now(), self._observed(model)
        wait = waits(observed, now)
        warnings = await self._herald.warnings(key_of(model), wait.silent)
        observed = replace(observed, warnings=warnings)
        verdict, cached = inspection.read(model, previous, observed, now), caching.read(model, previous, observed, now)
        inherited = inherit(model, previous, observed, verdict.facts)
        wanted = desired(model, self._config, inherited, self.known_kinds)
        remainders = self._remainders.setdefault(key_of(model), Remainders())
        step = plan(model, wanted, observed, verdict, cached, now, remainders)
        trouble = await self._carry_out(model, step, is_patient) or missing_kinds(wanted)
        observed = replace(self._observed(model), warnings=warnings)
        accepted = await self._accepted(model, previous, observed.serving_pods)
        found = Findings(observed, verdict, cached, accepted, trouble)
        current = status_of(model, previous, found, self._now())
        probation_s = CALM_S if looping(observed.serving_pods, now) else None
        current |= chosen_image(model, self._config, inherited, observed)
        await self._publish(resource, current)
        delays = (wait.look_again_s, step.look_again_s, probation_s, self._sampling_s(model))
        return Outcome(min((delay for delay in delays if delay is not None), default=None), trouble)

    def _observed(self, model: Model) -> Observed:
        return self._store.observed(key_of(model), model.uid)

    async def _carry_out(self, model: Model, step: Plan, is_patient: bool) -> str:
        """Delete, then apply: KEDA refuses a ScaledObject beside the autoscaler that it takes over from.

        A refused child keeps no other child from being applied, unless pods need the refused one and it is not there. Returns
        the refusals as text. A failure that may pass by itself is raised, while patience lasts.
        """
        if not step.is_empty:
            logger.info("model %s/%s: %s", model.namespace, model.name, ", ".join(step.details))
        refusals = []
        for found in step.delete:
            refusals.append(await self._refusal(self._delete(found, BY_NAME[found["kind"]]), is_patient))
        for document in step.apply:
            refusals.append(await self._refusal(self._apply(model, document), is_patient))
            kind, name = document["kind"], document["metadata"]["name"]
            if refusals[-1] and kind in BEFORE_PODS and self._observed(model).get(kind, name) is None:
                break
        return "; ".join(filter(None, refusals))

    async def _refusal(self, write: Awaitable[None], is_patient: bool) -> str:
        """Why a write is refused, or nothing."""
        try:
            await write
        except NameTakenError as error:
            return str(error)
        except ApiError as error:
            if error.status not in REFUSALS and is_patient:
                raise
            return f"the API server refuses a child: {error}"
        return ""

    async def _delete(self, found: Object, kind: Kind) -> None:
        """Delete a child. Where no watch tells that a child went, the store forgets it here."""
        await self._cluster.delete(found, kind)
        if not is_watched(found):
            self._store.drop(found)

    async def _apply(self, model: Model, document: Object) -> None:
        """Apply a child. A child that is not observed is looked up by name first, so that nobody's namesake is written over."""
        kind, metadata = BY_NAME[document["kind"]], document["metadata"]
        found = self._observed(model).get(kind.kind, metadata["name"])
        if found is None:
            try:
                found = await self._cluster.get(kind, metadata["namespace"], metadata["name"])
            except GoneError:
                self._applied(key_of(model), document, await self._cluster.apply(document, kind))
                return
            if why := ownership.why_not_ours(found, document, model.uid):
                raise NameTakenError(kind.kind, metadata["name"], why)
            if kind.kind == "Job":
                self._written(found)
                return
        about_this_one = {**document, "metadata": {**metadata, "uid": found["metadata"]["uid"]}}
        self._applied(key_of(model), document, await self._cluster.apply(about_this_one, kind))

    async def _publish(self, resource: Object, current: Status) -> None:
        """Write the status if it says anything new, and an Event for each condition that turned."""
        previous, key = resource.get("status") or {}, Key(resource["metadata"]["namespace"], resource["metadata"]["name"])
        current["manager"] = self._config.installation
        events: list[Object] = []
        if current != previous and self._published.get(key) != (current, previous):
            try:
                answer = await self._apply_status(resource, current)
            except GoneError:
                return
            self._published[key] = (current, answer.get("status") or {})
            events = [event(resource, change, self._config.pod_name, self._now()) for change in changes(previous, current)]
        await self._herald.tell(key, events)

    async def _apply_status(self, resource: Object, current: Status) -> Object:
        """Write a status. Where the API server refuses some text of it, it is written without the text of others."""
        metadata = {name: resource["metadata"][name] for name in ("name", "namespace", "uid")}
        document = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": current}
        try:
            answer = await self._cluster.apply(document, MODEL, "status")
        except ApiError as error:
            if error.status not in UNREADABLE:
                raise
            logger.error("model %s/%s: the status is refused: %s", metadata["namespace"], metadata["name"], error)
            answer = await self._cluster.apply({**document, "status": bare(current)}, MODEL, "status")
        self._written(answer)
        return answer

    def _applied(self, key: Key, document: Object, answer: Object) -> None:
        self._remainders.setdefault(key, Remainders()).remember(document, answer)
        self._written(answer)

    def _written(self, answer: Object) -> None:
        """Put an answer into the store, and expect a watch to show it.

        No watch shows an apply that changed nothing, was slower than its event, or is of an unwatched kind.
        """
        if self._store.is_news(answer) and is_watched(answer):
            self._watchdog.expect(answer)
        self._store.put(answer)

    async def _accepted(self, model: Model, previous: Status, pods: Sequence[Object]) -> dict[str, Any]:
        """`status.acceptance`, sampled anew when the period is over."""
        key = key_of(model)
        if model.spec.speculation.algorithm == "off":
            return {}
        known = dict(previous.get("acceptance") or {})
        if time.monotonic() - self._sampled_at.get(key, -1e9) < self._config.acceptance_period_s:
            return known
        self._sampled_at[key] = time.monotonic()
        return acceptance.status_fields(await self._scraper.counters(pods), known, self._now())

    def _sampling_s(self, model: Model) -> float | None:
        return None if model.spec.speculation.algorithm == "off" else self._config.acceptance_period_s


def key_of(model: Model) -> Key:
    """The key under which the store and the queue know a model."""
    return Key(model.namespace, model.name)


def is_watched(found: Object) -> bool:
    """Whether a watch tells of an object.

    Optional kinds have no watch. A Job whose label was taken off has none either, and no apply restores the label.
    """
    labels = found["metadata"].get("labels") or {}
    is_selected = found["kind"] == names.KIND or labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY
    return is_selected and not BY_NAME[found["kind"]].is_optional


def missing_kinds(wanted: Desired) -> str:
    """What the resource asks for and the cluster does not know, as one sentence."""
    if not wanted.missing_kinds:
        return ""
    return f"the cluster does not know {', '.join(wanted.missing_kinds)}: install it, or remove the field that asks for it"
