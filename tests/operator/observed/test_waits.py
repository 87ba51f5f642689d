"""What waits without saying why, when its Events are asked for, and what they add to the message."""

from datetime import timedelta

import pytest
from operator_builders import NOW, UID, make_job, make_pod, observe

from paceline_operator.observed.pods import no_pod, waiting
from paceline_operator.observed.waits import LATEST_S, PATIENCE_S, SOONEST_S, STALL_S, stalled, waits
from paceline_operator.observed.warnings import Warning, Warnings, newest, warnings_of

BOUND = {"type": "PodScheduled", "status": "True"}
UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "unbound claims"}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
CREATING = {"name": "inspect", "state": {"waiting": {"reason": "ContainerCreating"}}}


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def pod(age_s=PATIENCE_S, *statuses, **status):
    found = make_pod("a", "inspect", "job", conditions=[BOUND], containerStatuses=list(statuses), phase="Pending")
    found["metadata"] |= {"creationTimestamp": ago(age_s), "uid": "uid-pod"}
    found["status"] |= status
    return found


def job(age_s=PATIENCE_S, **conditions):
    found = make_job("job", made_at=ago(age_s))
    found["status"]["conditions"] = [{"type": type_, "status": status} for type_, status in conditions.items()]
    return found


def claim(phase="Pending"):
    owner = {"kind": "SpeculativeModel", "name": "demo", "uid": UID}
    metadata = {"name": "demo-cache", "uid": "uid-claim", "creationTimestamp": ago(60), "ownerReferences": [owner]}
    return {"kind": "PersistentVolumeClaim", "metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    "objects, silent",
    [
        ([job(), pod()], ["Pod"]),
        ([job(), pod(PATIENCE_S, CREATING)], ["Pod"]),
        ([job(), pod(1.0, CREATING)], []),
        ([job(), pod(60, {"name": "inspect", "state": {"waiting": {"reason": "ErrImagePull"}}})], []),
        ([job(), pod(60, {"name": "inspect", "state": {"running": {}}}, phase="Running")], []),
        ([job(), pod(60, conditions=[UNBOUND])], []),
        ([job()], ["Job"]),
        ([job(Suspended="True")], []),
        ([job(Complete="True")], []),
        ([job(Failed="True")], []),
        ([claim()], []),
        ([job(), claim(), pod(60, conditions=[UNBOUND])], ["PersistentVolumeClaim"]),
        ([job(), claim("Bound"), pod(60, conditions=[UNBOUND])], []),
    ],
)
def test_only_what_does_not_speak_is_asked_about(objects, silent):
    """Pods with a node and without a word, Jobs without pods, claims that pods wait for; not before a start takes long."""
    assert [one["kind"] for one in waits(observe(objects), NOW).silent] == silent


@pytest.mark.parametrize("age_s, again_s", [(1, SOONEST_S), (PATIENCE_S, SOONEST_S), (80, 20), (4000, LATEST_S)])
def test_a_wait_is_looked_at_again(age_s, again_s):
    """Soon at first, and always within a minute."""
    assert waits(observe([job(), pod(age_s)]), NOW).look_again_s == again_s
    assert waits(observe([job(Complete="True")]), NOW).look_again_s is None


@pytest.mark.parametrize(
    "job_, pods, is_stalled",
    [
        (job(STALL_S), [], True),
        (job(STALL_S - 1), [], False),
        (job(STALL_S), [pod(STALL_S, CREATING)], True),
        (job(9 * STALL_S), [pod(60, CREATING)], False),
        (job(STALL_S), [pod(STALL_S, {"name": "inspect", "state": {"running": {}}})], False),
        (job(STALL_S), [pod(STALL_S, conditions=[GATED])], False),
        (job(STALL_S, Suspended="True"), [], False),
    ],
)
def test_a_job_of_which_nothing_starts_stalls(job_, pods, is_stalled):
    """A download may take as long as it needs, and a queue may hold a Job back."""
    assert stalled(job_, pods, NOW) is is_stalled


def test_warnings_name_object_and_reason():
    """For a pod, a Job, and a claim behind the scheduler's words."""
    mount, quota = Warning("FailedMount", 'secret "x" not found'), Warning("FailedCreate", "exceeded quota")
    warnings = Warnings({"uid-pod": mount, "uid-Job-job": quota})
    (owned,) = [one for (kind, _), one in observe([job()]).children.items() if kind == "Job"]
    found = warnings_of({"uid-claim": Warning("ProvisioningFailed", "no class fast")}, [claim()])

    assert waiting([pod()], warnings) == ("FailedMount", 'pod a: secret "x" not found')
    assert no_pod(owned, [], warnings) == ("FailedCreate", "Job job: exceeded quota")
    reason, message = waiting([pod(60, conditions=[UNBOUND])], found)
    assert (reason, message) == ("Unschedulable", "unbound claims; claim demo-cache: ProvisioningFailed: no class fast")


def test_a_gated_pod_waits():
    """It is not unschedulable: the scheduler has not looked at it."""
    assert waiting([pod(60, conditions=[GATED])], Warnings()) == ("SchedulingGated", "gated")


def test_the_newest_event_counts():
    """Old controllers and new ones keep the time in different fields."""
    events = [
        {"metadata": {}, "reason": "A", "message": "a", "lastTimestamp": "2026-01-01T00:00:05Z"},
        {"metadata": {}, "reason": "B", "message": "b", "series": {"lastObservedTime": "2026-01-01T00:00:09.000000Z"}},
        {"metadata": {}, "reason": "C", "message": "c", "eventTime": "2026-01-01T00:00:07.000000Z", "lastTimestamp": None},
    ]

    assert newest(events) == Warning("B", "b")
    assert newest([]) is None
