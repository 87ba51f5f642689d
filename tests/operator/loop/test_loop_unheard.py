"""The running operator where nothing tells it: kinds and objects that are not watched, Events and models that go unseen."""

import asyncio
from functools import partial

import pytest
from running_operator import idle, reasons, served

from paceline_operator.cluster import watchdog
from paceline_operator.cluster.kinds import BY_NAME, MODEL
from paceline_operator.errors import ApiError


@pytest.mark.parametrize("status", [403, 503])
async def test_an_event_that_fails_loses_no_other(running, status):
    """The status is written by then and says it no more: a failure is tried again, a refusal costs that Event only."""
    await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    create, failures = running.operator.cluster.create, [status]

    async def fail_first(document, kind):
        if failures:
            raise ApiError(failures.pop(), "no events now")
        return await create(document, kind)

    running.operator.cluster.create = fail_first
    await served(running)
    await idle(running)

    assert reasons(running) & {"Compatible", "Loading"} == ({"Loading"} if status == 403 else {"Compatible", "Loading"})


async def test_a_refusal_in_other_words_each_time_is_no_loop(running):
    """Webhooks' failures name ports and ids: telling a new text is no reason to try again at once."""
    (job,) = await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    apply, attempts = running.operator.cluster.apply, []

    async def refuse_jobs(document, kind, subresource=""):
        if kind.kind == "Job":
            attempts.append(job)
            raise ApiError(403, f"read tcp 10.0.0.1:{len(attempts)}: connection reset")
        return await apply(document, kind, subresource)

    running.operator.cluster.apply = refuse_jobs
    await running.call("DELETE", BY_NAME["Job"], job)
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")
    async with asyncio.timeout(10):
        await idle(running)

    assert len(attempts) <= 2


async def test_nothing_is_kept_of_a_model_that_went_unseen(running):
    """Its watch was closed meanwhile, and the list tells."""
    await running.call("PATCH", MODEL, "demo", {"spec": {"speculation": {"algorithm": "ngram"}}})
    await running.until(lambda: running.operator.reconciler._sampled_at, "a look at the pods' figures")
    await idle(running)
    running.operator.seen = lambda found, is_deleted: None
    await running.call("DELETE", MODEL, "demo")
    await running.operator._list_all(became_leader=False)

    await running.until(lambda: not running.operator.reconciler._sampled_at, "nothing is kept")
    assert not running.operator.queue._timers


async def monitored(running):
    """A served model with a PodMonitor, on a cluster that knows the kind."""
    running.server.declare()
    await running.until(lambda: running.operator.is_synced.is_set(), "the first list")
    await running.operator._list_all(became_leader=False)
    await running.call("PATCH", MODEL, "demo", {"spec": {"metrics": {"podMonitor": {"enabled": True}}}})
    await served(running)
    await running.until(lambda: running.names("podmonitors"), "a PodMonitor")
    await idle(running)


async def test_an_unwatched_kind_is_no_silence(running, monkeypatch):
    """Optional kinds are not watched, so nothing tells of an applied one: that is no reason to restart."""
    monkeypatch.setattr(watchdog, "PATIENCE_S", -1.0)
    await monitored(running)

    assert running.operator.health.why_not_alive() == ""


async def test_an_unwatched_child_is_deleted_once_and_made_again(running):
    """No watch tells that it went: the next look must neither delete it again nor take it for present."""
    await monitored(running)
    await running.call("PATCH", MODEL, "demo", {"spec": {"metrics": None}})
    await running.until(lambda: not running.names("podmonitors"), "no PodMonitor")
    await running.call("PATCH", MODEL, "demo", {"metadata": {"labels": {"look": "again"}}})
    writes = await idle(running)
    await running.call("PATCH", MODEL, "demo", {"spec": {"metrics": {"podMonitor": {"enabled": True}}}})

    await running.until(lambda: running.names("podmonitors"), "the PodMonitor again")
    assert writes.count(("DELETE", "podmonitors")) == 1


async def test_a_job_without_its_label_is_no_silence(running, monkeypatch):
    """Somebody took the label off that the watch selects by: the Job is ours by its owner, and no event tells of it."""
    monkeypatch.setattr(watchdog, "PATIENCE_S", -1.0)
    (name,) = await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    job = running.find("jobs", name)
    del job["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    monkeypatch.setattr(running.operator.cluster, "get", partial(answer, job))
    running.operator.seen(running.find("jobs", name), is_deleted=True)
    await running.until(lambda: running.operator.store.known(BY_NAME["Job"]), "the Job is found")
    await idle(running)

    assert running.operator.health.why_not_alive() == ""


async def answer(found, *_):
    return {**found, "metadata": {**found["metadata"], "resourceVersion": "1000"}}


async def test_children_go_with_their_kind(running, monkeypatch):
    """A kind that was uninstalled took its objects along: none is there to be deleted at every look."""
    await monitored(running)

    async def knows(kind):
        return False

    monkeypatch.setattr(running.operator.cluster, "knows", knows)
    await running.operator._list_all(became_leader=False)
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")

    assert ("DELETE", "podmonitors") not in await idle(running)
