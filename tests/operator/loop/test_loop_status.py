"""What the running operator writes of a model, on an emulated API server: no more than is new, and never nothing."""

import pytest
from operator_builders import NOW
from running_operator import SERVING, idle, served

from paceline_operator.cluster.kinds import EVENT, MODEL
from paceline_operator.cluster.store import Key
from paceline_operator.errors import ApiError
from paceline_operator.loop.herald import Herald
from paceline_operator.observed.warnings import Warning

KEY = Key("ml", "demo")


def changing(running, monkeypatch, change):
    """Let `change(document, kind, subresource)` say what is applied instead of a document."""
    apply = running.operator.cluster.apply

    async def changed(document, kind, subresource=""):
        return await apply(change(document, kind, subresource), kind, subresource)

    monkeypatch.setattr(running.operator.cluster, "apply", changed)


async def look(running, name):
    """Make the operator look once more, and wait until it has."""
    await running.call("PATCH", MODEL, "demo", {"metadata": {"labels": {"look": name}}})
    return await idle(running)


async def test_what_a_policy_changes_is_applied_once(running, monkeypatch):
    """Of every child that serves, each time it is written: later looks find it as the API server makes it."""

    def change(document, kind, subresource):
        if document["kind"] != "Deployment":
            return document
        pod = document["spec"]["template"]["spec"]
        proxied = {**pod, "tolerations": [{"key": "theirs"}], "containers": [{**pod["containers"][0], "image": "mirror:1"}]}
        return {**document, "spec": {**document["spec"], "template": {**document["spec"]["template"], "spec": proxied}}}

    changing(running, monkeypatch, change)
    await served(running)
    await idle(running)
    await look(running, "first")
    before = await look(running, "second")
    after = await look(running, "third")

    assert running.find("deployments", "demo")["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror:1"
    assert ("PATCH", "deployments") in before
    assert [one for one in after[len(before) :] if one[1] in SERVING] == []


async def test_a_status_field_that_an_older_crd_drops_is_written_once(running, monkeypatch):
    """Else each look would write the same status, for ever."""

    def drop(document, kind, subresource):
        if subresource != "status":
            return document
        return {**document, "status": {name: value for name, value in document["status"].items() if name != "manager"}}

    changing(running, monkeypatch, drop)
    await served(running)
    before = await look(running, "first")
    after = await look(running, "second")

    assert "manager" not in running.find("speculativemodels", "demo")["status"]
    assert len([one for one in after[len(before) :] if one[1] == "speculativemodels"]) == 1


async def test_a_status_that_is_refused_freezes_nothing(running, monkeypatch):
    """It is written without the text of others, children go on, and the text is back when it is taken again."""
    apply, refused = running.operator.cluster.apply, []

    async def strict(document, kind, subresource=""):
        if subresource == "status" and any("verdict" in one["message"] for one in document["status"]["conditions"]):
            refused.append(document)
            raise ApiError(422, "status.conditions[1].message: Invalid value")
        return await apply(document, kind, subresource)

    monkeypatch.setattr(running.operator.cluster, "apply", strict)
    await running.give_verdict(message="a verdict that nobody takes")
    await running.until(lambda: running.condition("Compatible") == ("True", "Compatible"), "a status without the text")
    for kind in SERVING:
        await running.until(lambda kind=kind: running.find(kind, "demo"), kind)
    before = await idle(running)
    after = await look(running, "again")

    assert refused
    assert len([one for one in after[len(before) :] if one[1] == "speculativemodels"]) == 1
    conditions = running.find("speculativemodels", "demo")["status"]["conditions"]
    assert all("the operator's log has it" in one["message"] for one in conditions if one["type"] == "Compatible")


async def test_what_turns_again_counts_up_its_event(running):
    """A condition that turns to and fro makes two Events, with counts."""
    await served(running)
    await idle(running)
    for paused in (True, False, True, False):
        await running.call("PATCH", MODEL, "demo", {"spec": {"paused": paused}})
        reason = "Paused" if paused else "RollingOut"
        await running.until(lambda reason=reason: running.condition("Progressing")[1] == reason, reason)
        await idle(running)
    found = [running.find("events", name) for name in running.names("events")]

    assert [one["count"] for one in found if one["reason"] == "Paused"] == [2]
    assert len({(one["reason"], one["message"].split()[0]) for one in found}) == len(found)


class Witness:
    """An API server's Events, as the herald asks for them."""

    def __init__(self, status=0):
        self.asked, self.status = [], status

    async def list(self, kind, namespace, label_selector=None, field_selector=None):
        self.asked.append((kind, namespace, field_selector))
        if self.status:
            raise ApiError(self.status, "no")
        return [{"metadata": {}, "reason": "FailedMount", "message": "no secret", "lastTimestamp": NOW.isoformat()}]


POD = {"kind": "Pod", "metadata": {"name": "a", "namespace": "ml", "uid": "u"}}


async def test_warnings_are_read_once_for_a_burst_of_looks():
    """By the uid of the object that does not speak; again after a while."""
    witness, now = Witness(), [0.0]
    herald = Herald(witness, lambda: now[0])
    for now[0] in (0.0, 1.0, 2.0, 9.0):
        warnings = await herald.warnings(KEY, [POD])

    assert warnings.about(POD) == Warning("FailedMount", "no secret")
    assert witness.asked == [(EVENT, "ml", "involvedObject.uid=u,type=Warning")] * 2
    assert (await herald.warnings(KEY, [])).about(POD) is None


@pytest.mark.parametrize("status", [403, 500, 0])
async def test_events_that_cannot_be_read_are_done_without(status):
    """A role that was written by hand for an earlier version, or an outage: nothing else waits for them."""
    found = (await Herald(Witness(status), lambda: 0.0).warnings(KEY, [POD])).about(POD)

    assert (found is None) == bool(status)
