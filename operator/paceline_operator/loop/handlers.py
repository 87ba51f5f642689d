"""kopf's handlers, which take events and reviews. No handler decides anything, and none builds an object.

`register` puts the handlers on a given registry, so that tests run several operators in one process. Watches by `on.event`
need neither finalizers nor annotations on anybody's objects.
"""

from __future__ import annotations

from typing import Any

import kopf

from paceline_operator.admission.review import review
from paceline_operator.admission.sample import PROBE_USER, WEBHOOK_ID
from paceline_operator.cluster.kinds import MODEL, WATCHED
from paceline_operator.loop.operator import Operator


def register(registry: kopf.OperatorRegistry, *, with_webhook: bool) -> None:
    """Put every handler on the registry; kopf refuses a webhook without a server for it."""
    # A start that fails ends the process: half a loop does no work, and the kubelet starts another process.
    kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(start)
    kopf.on.cleanup(registry=registry)(stop)
    kopf.on.login(registry=registry)(login)
    for kind in (MODEL, *WATCHED):
        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(seen)
    if with_webhook:
        webhook = {"id": WEBHOOK_ID, "operations": ["CREATE", "UPDATE"], "registry": registry}
        kopf.on.validate(MODEL.group, MODEL.version, MODEL.plural, **webhook)(validate)


async def start(memo: kopf.Memo, **_: Any) -> None:
    """Start the loop before the first event."""
    await _operator(memo).start()


async def stop(memo: kopf.Memo, **_: Any) -> None:
    """Stop the loop after the last one."""
    await _operator(memo).stop()


def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Log in by the pod's service account inside a pod, and by the current kubeconfig elsewhere."""
    info: kopf.ConnectionInfo | None = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
    return info


async def seen(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Tell the operator that a model, a child or a pod appeared, changed or went."""
    _operator(memo).seen(dict(event["object"]), is_deleted=event["type"] == "DELETED")


async def validate(
    body: kopf.Body, old: kopf.Body | None, memo: kopf.Memo, warnings: list[str], userinfo: kopf.UserInfo, **_: Any
) -> None:
    """Deny a resource that is known not to work, and warn of one that is not known. The operator's own probes do not count."""
    operator = _operator(memo)
    decision = await review(dict(body), dict(old) if old else None, operator.metadata.judge)
    warnings += decision.warnings
    if userinfo.get("username") != PROBE_USER:
        operator.metrics.admissions.labels("denied" if decision.problems else "allowed").inc()
    if decision.problems:
        raise kopf.AdmissionError(decision.message, code=422)


def _operator(memo: kopf.Memo) -> Operator:
    operator: Operator = memo.operator
    return operator
