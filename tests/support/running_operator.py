"""What tests of the running operator wait for: a model that is served, and quiet. Used by tests/operator only."""

import asyncio

SERVING = {"deployments", "services", "poddisruptionbudgets"}


async def served(running):
    """Through inspection to a Deployment."""
    await running.give_verdict()
    for kind in SERVING:
        await running.until(lambda kind=kind: running.find(kind, "demo"), kind)
    await running.until(lambda: running.condition("Compatible") == ("True", "Compatible"), "condition Compatible")


def reasons(running):
    """Of all Events."""
    found = running.server.objects.items()
    return {event.raw["reason"] for (resource, *_), event in found if resource.plural == "events"}


async def idle(running):
    """Wait until nothing is queued or written any more; the writes so far."""
    before = -1
    while before != len(running.server.writes) or len(running.operator.queue):
        before = len(running.server.writes)
        await asyncio.sleep(0.3)
    return list(running.server.writes)
