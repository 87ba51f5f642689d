"""The running operator on an emulated API server: what it does unasked, and what failures do to it."""

import asyncio
import contextlib

import kopf
import pytest
from operator_builders import CLAIM
from running_operator import SERVING, idle, reasons, served

from paceline_operator.admission.sample import sample_review
from paceline_operator.cluster import watchdog
from paceline_operator.cluster.kinds import BY_NAME, MODEL
from paceline_operator.errors import ApiError
from paceline_operator.loop import handlers, reconcile


async def test_a_model_goes_from_inspection_to_serving(running):
    """It was there before the operator: the first list is enough, no event has to happen."""
    await running.until(lambda: running.condition("Compatible")[1] == "Inspecting", "a first status")
    assert running.find("deployments", "demo") is None

    await served(running)

    assert running.condition("Accepted") == ("True", "Valid")
    assert len(running.names("jobs")) == 1
    await running.until(lambda: {"Inspecting", "Compatible", "Valid"} <= reasons(running), "events of the changes")


async def test_no_deployment_for_what_does_not_fit(running):
    """The table's text is the condition's, and no pod is asked for."""
    await running.give_verdict("Incompatible", "VocabMismatch")
    await running.until(lambda: running.condition("Compatible") == ("False", "VocabMismatch"), "condition Compatible")

    assert running.condition("Ready") == ("False", "VocabMismatch")
    assert not {plural for _, plural in await idle(running)} & SERVING


async def test_idle_means_no_writes(running):
    """A full list of everything, and another event, change nothing and write nothing: there is no loop."""
    await served(running)
    before = await idle(running)
    await running.operator._list_all(became_leader=False)
    after = await idle(running)

    assert after == before


async def test_what_is_no_longer_asked_for_goes_first(running):
    """An autoscaler of another kind, applied beside the old one, would be refused and the old one stay for ever."""
    await running.call("PATCH", MODEL, "demo", {"spec": {"autoscaling": {"maxReplicas": 3}}})
    await served(running)
    await running.until(lambda: running.names("horizontalpodautoscalers"), "an autoscaler")
    before = len(await idle(running))
    await running.call("PATCH", MODEL, "demo", {"spec": {"autoscaling": None, "replicas": 2}})
    await running.until(lambda: not running.names("horizontalpodautoscalers"), "no autoscaler")
    children = [one for one in (await idle(running))[before:] if one[1] in ("horizontalpodautoscalers", "deployments")]

    assert children == [("DELETE", "horizontalpodautoscalers"), ("PATCH", "deployments")]


@pytest.mark.parametrize("status", [409, 429, 500, 503, 504])
async def test_failures_of_the_api_server_are_waited_out(running, status):
    """Each write fails once or twice; in the end everything is there, once."""
    running.server.failures += [status] * 2
    await served(running)

    assert running.server.failures == []
    assert len(running.names("jobs")) == 1
    assert running.names("deployments") == ["demo"]


async def test_a_refused_child_is_told_and_tried_again(running):
    """A quota's 403 is in the status, and the next attempt may pass."""
    (job,) = await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    running.server.failures += [403]
    await running.call("DELETE", BY_NAME["Job"], job)
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")
    await running.call("PATCH", MODEL, "demo", {"metadata": {"labels": {"look": "again"}}})

    await running.until(lambda: running.names("jobs") == [job], "the Job again")


async def test_a_refused_child_keeps_no_other_from_being_made(running):
    """Its Service is refused: the pods come all the same, and the status tells."""
    await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    running.server.failures += [403]
    await running.give_verdict()
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")

    assert running.find("deployments", "demo")
    assert running.find("services", "demo") is None


async def test_no_pod_is_made_while_its_network_policy_is_refused(running):
    """Else it would be open to everybody."""
    await running.call("PATCH", MODEL, "demo", {"metadata": {"generation": 2}, "spec": {"networkPolicy": {"enabled": True}}})
    await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    apply = running.operator.cluster.apply

    async def refuse_policies(document, kind, subresource=""):
        if kind.kind == "NetworkPolicy":
            raise ApiError(403, "no policies here")
        return await apply(document, kind, subresource)

    running.operator.cluster.apply = refuse_policies
    await running.give_verdict()
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")

    assert running.find("services", "demo")
    assert running.find("deployments", "demo") is None


async def test_a_failure_that_lasts_is_told(running, monkeypatch):
    """Whatever its code: a model that cannot be served for long says why."""
    monkeypatch.setattr(reconcile, "PATIENCE", 1)
    (job,) = await running.until(lambda: running.names("jobs"), "an inspect Job")
    await idle(running)
    running.server.failures += [500, 500]
    await running.call("DELETE", BY_NAME["Job"], job)

    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")


async def test_health_follows_the_watches_and_the_tasks(running, monkeypatch):
    """Alive while writes come back through the watches; a silent watch or a dead task is a reason to restart."""
    await served(running)
    await idle(running)
    health = running.operator.health
    assert (health.why_not_alive(), await health.why_not_ready()) == ("", "")

    monkeypatch.setattr(watchdog, "PATIENCE_S", -1.0)
    monkeypatch.setattr(running.operator.watchdog, "heard", lambda found: None)
    await running.call("PATCH", MODEL, "demo", {"spec": {"replicas": 2}})
    await running.until(lambda: "the watch is silent" in health.why_not_alive(), "the silence is noticed")
    running.operator.tasks[0].cancel()
    await running.until(lambda: "ended: leadership" in health.why_not_alive(), "the dead task is noticed")


async def test_an_apply_that_changes_nothing_is_no_silence(running, monkeypatch):
    """Somebody adds to a list of ours: it differs for ever, each apply is a no-op, and no watch will tell of it."""
    await served(running)
    await idle(running)
    monkeypatch.setattr(watchdog, "PATIENCE_S", -1.0)
    apply = running.operator.cluster.apply

    async def no_op(document, kind, subresource=""):
        if subresource:
            return await apply(document, kind, subresource)
        return running.find(kind.plural, document["metadata"]["name"])

    monkeypatch.setattr(running.operator.cluster, "apply", no_op)
    await running.call("PATCH", BY_NAME["Service"], "demo", {"spec": {"ports": [{"port": 8000}, {"port": 9}]}})
    await running.until(lambda: len(running.find("services", "demo")["spec"]["ports"]) == 2, "the edit")
    await idle(running)

    assert running.operator.health.why_not_alive() == ""


async def test_metrics_count_what_happens(running):
    """Reconciles by outcome, their time, API calls, and models by condition."""
    await served(running)
    await idle(running)
    value = running.operator.metrics.registry.get_sample_value

    assert value("paceline_operator_reconciles_total", {"outcome": "ok"}) >= 2
    assert value("paceline_operator_reconcile_seconds_count") >= 2
    assert value("paceline_operator_api_calls_total", {"verb": "patch"}) >= 4
    assert value("paceline_operator_models", {"condition": "Compatible", "status": "True"}) == 1
    assert value("paceline_operator_model_replicas", {"namespace": "ml", "model": "demo", "state": "ready"}) == 0
    assert value("paceline_operator_leading") == 1


async def test_probes_are_not_counted_as_admissions(emulated):
    """A readiness probe every 2 s would drown what users apply."""
    review = sample_review("pvc://probe")["request"]
    memo, value = kopf.Memo(operator=emulated.operator), emulated.operator.metrics.registry.get_sample_value
    for user in (review["userInfo"], {"username": "jane"}):
        await handlers.validate(body=review["object"], old=None, memo=memo, warnings=[], userinfo=user)

    assert value("paceline_operator_admissions_total", {"decision": "allowed"}) == 1


async def test_a_replica_that_is_outranked_does_nothing(emulated):
    """It sees the other's entry, whose clock is far off, and leaves the models to it; it is ready without a webhook too."""
    peer = {"priority": 99, "lifetime": 60, "lastseen": "1999-01-01T00:00:00+00:00"}
    peering = {"metadata": {"name": emulated.operator.config.peering_name}, "status": {"other": peer}}
    emulated.server.objects["kopf.dev/v1/clusterkopfpeerings", None, emulated.operator.config.peering_name] = peering
    emulated.add_model()
    task = asyncio.create_task(emulated.run())
    await emulated.until(lambda: emulated.operator.knows_leader.is_set(), "it knows who leads")
    reason = await emulated.operator.health.why_not_ready()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert (emulated.server.writes, reason) == ([], "")
    assert not emulated.operator.is_leading


async def test_models_of_another_installation_are_left_alone(emulated):
    """It is at home in their namespace; models elsewhere are served, and their status says by whom."""
    peer = {"priority": 99, "lifetime": 60, "lastseen": "1999-01-01T00:00:00+00:00"}
    theirs = {"metadata": {"name": "theirs", "namespace": "home"}, "status": {"pod": peer}}
    emulated.server.objects["kopf.dev/v1/kopfpeerings", "home", "theirs"] = theirs
    emulated.add_model("left", namespace="home")
    emulated.add_model()
    task = asyncio.create_task(emulated.run())
    await emulated.until(lambda: emulated.condition("Accepted") == ("True", "Valid"), "the other model is looked at")
    await idle(emulated)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert "status" not in emulated.find("speculativemodels", "left")
    assert len(emulated.names("jobs")) == 1
    assert emulated.find("speculativemodels", "demo")["status"]["manager"] == "paceline-operator"


async def test_watches_that_close_are_opened_again(running):
    """What changes afterwards is still noticed."""
    await served(running)
    opened = running.server.num_watches.copy()
    running.server.close_watches()
    await running.until(lambda: running.server.num_watches["speculativemodels"] > opened["speculativemodels"], "another watch")
    await running.call("PATCH", MODEL, "demo", {"metadata": {"generation": 4}, "spec": {**CLAIM, "replicas": 3}})

    await running.until(lambda: running.find("deployments", "demo")["spec"]["replicas"] == 3, "three replicas")


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget"])
async def test_a_deleted_child_is_made_again(running, kind):
    """Whoever deleted it."""
    await served(running)
    await idle(running)
    await running.call("DELETE", BY_NAME[kind], "demo")

    await running.until(lambda: running.find(BY_NAME[kind].plural, "demo"), "it is back")


async def test_an_edited_child_is_corrected(running):
    """Our fields only: another's annotation stays."""
    await served(running)
    await idle(running)
    edit = {"metadata": {"annotations": {"mine": "stays"}}, "spec": {"replicas": 7}}
    await running.call("PATCH", BY_NAME["Deployment"], "demo", edit)

    await running.until(lambda: running.find("deployments", "demo")["spec"]["replicas"] == 1, "one replica")
    assert running.find("deployments", "demo")["metadata"]["annotations"]["mine"] == "stays"


async def test_a_namesake_of_somebody_else_is_left_alone(running):
    """It is named in the status instead of being taken over."""
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo", "namespace": "ml"}, "spec": {"x": 1}}
    await running.create(BY_NAME["Service"], foreign)
    await running.give_verdict()
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")

    assert running.find("services", "demo")["spec"] == {"x": 1}


async def test_a_paused_model_is_left_as_it_is(running):
    """Nothing is applied until it goes on."""
    await served(running)
    await idle(running)
    await running.call("PATCH", MODEL, "demo", {"spec": {"paused": True, "replicas": 5}})
    await running.until(lambda: running.condition("Progressing") == ("False", "Paused"), "condition Progressing")
    assert running.find("deployments", "demo")["spec"]["replicas"] == 1

    await running.call("PATCH", MODEL, "demo", {"spec": {"paused": False}})
    await running.until(lambda: running.find("deployments", "demo")["spec"]["replicas"] == 5, "five replicas")


async def test_a_kind_that_the_cluster_lacks_is_told(running):
    """Everything else serves."""
    await served(running)
    await running.call("PATCH", MODEL, "demo", {"spec": {"metrics": {"podMonitor": {"enabled": True}}}})
    await running.until(lambda: running.condition("Progressing") == ("False", "ApplyFailed"), "the trouble is told")

    conditions = running.find("speculativemodels", "demo")["status"]["conditions"]
    assert "does not know PodMonitor" in next(one["message"] for one in conditions if one["type"] == "Progressing")


async def test_an_invalid_resource_is_told_and_harms_no_other(running):
    """One older than its rules; the next model is served all the same."""
    running.add_model("broken")
    await running.call("PATCH", MODEL, "broken", {"spec": {"target": {"uri": "ftp://x"}}})
    await running.until(lambda: running.condition("Accepted", "broken") == ("False", "Invalid"), "condition Accepted")

    await served(running)


async def test_a_killed_operator_continues_where_things_stand(emulated):
    """Killed after every write in turn, a new one ends at the same place: one of each, and nothing twice."""
    emulated.add_model()
    for num_writes in range(1, 6):
        emulated.operator = type(emulated.operator)(emulated.operator.config, priority=num_writes)
        task = asyncio.create_task(emulated.run())
        if num_writes == 2:
            await emulated.give_verdict()
        goal = len(emulated.server.writes) + 1
        with contextlib.suppress(AssertionError):
            await emulated.until(
                lambda goal=goal: len(emulated.server.writes) >= goal or _is_served(emulated), "one more write"
            )
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    emulated.operator = type(emulated.operator)(emulated.operator.config, priority=99)
    task = asyncio.create_task(emulated.run())
    await emulated.until(lambda: _is_served(emulated), "everything is there")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task

    assert len(emulated.names("jobs")) == 1
    assert [emulated.names(kind) for kind in sorted(SERVING)] == [["demo"]] * 3


def _is_served(emulated):
    return emulated.condition("Compatible")[0] == "True" and all(emulated.find(kind, "demo") for kind in SERVING)
