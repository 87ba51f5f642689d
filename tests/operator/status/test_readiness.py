"""Ready's reason is the cause that a human should look at first."""

import itertools

import pytest
from operator_builders import CACHED, NOW, as_served, deployment_status, fits, make_model, make_pod, make_replica_set, observe

from paceline_operator import names
from paceline_operator.gates.inspection import PENDING, UNKNOWN, Inspection
from paceline_operator.status.readiness import CALM, ready
from paceline_operator.status.serving import Verdict
from paceline_operator.status.status import Findings, changes, status_of

TRUE = Verdict("True", "Fine", "")
MODEL = make_model()


def verdicts(**given):
    """All True but those that are given."""
    return {type_: given.get(type_, TRUE) for type_ in names.CONDITIONS} | {
        names.PROGRESSING: given.get("Progressing", SETTLED)
    }


SETTLED = Verdict("False", "Settled", "")
UNREADABLE = Verdict("Unknown", "MetadataUnavailable", "s3")
CRASH = Verdict("False", "CrashLoopBackOff", "server: exit code 1")
REFUSED = Verdict("False", "ApplyFailed", "403: exceeded quota")
PREPARING = Verdict("True", "Preparing", "")
STATES = {
    names.ACCEPTED: (TRUE, Verdict("False", "Invalid", "")),
    names.COMPATIBLE: (
        TRUE,
        Verdict("False", "VocabMismatch", ""),
        Verdict("Unknown", "InspectionFailed", ""),
        Verdict("Unknown", "Inspecting", ""),
        UNREADABLE,
    ),
    names.WEIGHTS_CACHED: (TRUE, Verdict("False", "FetchFailed", ""), Verdict("False", "Fetching", "")),
    names.AVAILABLE: (TRUE, CRASH, Verdict("False", "NotDeployed", ""), Verdict("False", "Loading", "")),
    names.PROGRESSING: (SETTLED, REFUSED, PREPARING),
}


@pytest.mark.parametrize("combination", list(itertools.product(*STATES.values())))
def test_a_known_cause_always_wins(combination):
    """Over what is unknown, and over what only takes time; and what is Ready has neither."""
    found = dict(zip(STATES, combination, strict=True))
    may_serve = found[names.COMPATIBLE] in (TRUE, UNREADABLE)
    answer = ready(verdicts(**found), may_serve=may_serve, has_service=True)
    shown = {type_: verdict for type_, verdict in found.items() if type_ != names.PROGRESSING or found["Available"] != TRUE}
    causes = {verdict.reason for verdict in shown.values() if verdict.status == "False" and verdict.reason not in CALM}

    if causes:
        assert answer.status == "False"
        assert answer.reason in causes
    assert answer.reason != "MetadataUnavailable"
    if answer.status == "True":
        assert found[names.AVAILABLE] == TRUE


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"Compatible": UNREADABLE, "Available": CRASH}, "CrashLoopBackOff"),
        ({"Compatible": UNREADABLE, "Available": Verdict("False", "NotDeployed", ""), "Progressing": REFUSED}, "ApplyFailed"),
        ({"WeightsCached": Verdict("False", "Fetching", ""), "Available": CRASH}, "CrashLoopBackOff"),
        ({"Accepted": Verdict("False", "Invalid", ""), "Available": CRASH}, "Invalid"),
    ],
)
def test_the_first_cause_is_told(given, reason):
    """The one that comes first on the way to serving."""
    assert ready(verdicts(**given), may_serve=True, has_service=True).reason == reason


def shown(pod, num_ready=0, previous=None, verdict=None, now=NOW):
    """The whole status of a served model with this pod."""
    observed = as_served(MODEL, num_ready=num_ready)
    counts = {**deployment_status(num_ready), "replicas": 1, "updatedReplicas": 1}
    observed.children["Deployment", "demo"]["status"] = counts
    observed = observe([*observed.children.values(), make_replica_set(), pod])
    return status_of(MODEL, previous or {}, Findings(observed, verdict or fits(MODEL), CACHED, {}), now)


def reasons(status):
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def crashing(restarts, state, ready_since=None):
    times = {"startedAt": "2026-11-29T11:59:00Z", "finishedAt": "2026-11-29T11:59:05Z"}
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "", **times}}
    server = {"name": "server", "restartCount": restarts, "state": state, "lastState": last}
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if ready_since:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": ready_since})
    return make_pod("a", conditions=conditions, containerStatuses=[server])


def test_a_crash_loop_is_one_condition_until_it_is_over():
    """Waiting, running, ready for a moment, again and again: nothing turns, and no Event is told; calm ends it."""
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    running = {"running": {"startedAt": "2026-11-29T11:59:30Z"}}
    moment = crashing(4, running, "2026-11-29T11:59:40Z")
    first = shown(crashing(2, back_off))
    turned, before = [], first
    for pod, num_ready in ((crashing(2, running), 0), (crashing(3, back_off), 0), (crashing(3, running), 0), (moment, 1)):
        after = shown(pod, num_ready, before)
        turned += changes(before, after)
        before = after
    calm = shown(crashing(4, running, "2026-11-29T11:58:59Z"), 1, before)

    assert turned == []
    assert reasons(first)["Available"] == reasons(before)["Available"] == ("False", "CrashLoopBackOff")
    message = next(one["message"] for one in before["conditions"] if one["type"] == "Ready")
    assert message == "server: OOMKilled, exit code 137, 4 restarts"
    assert (reasons(calm)["Available"], reasons(calm)["Ready"]) == (("True", "PodsAvailable"), ("True", "Serving"))


def test_a_gated_pod_waits():
    """Nobody has to do anything: it is no cause, and no warning."""
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
    found = reasons(shown(make_pod("a", conditions=[gated])))

    assert found["Scheduled"] == found["Available"] == found["Ready"] == ("False", "SchedulingGated")


@pytest.mark.parametrize("outcome, expected", [(UNKNOWN, "CrashLoopBackOff"), (PENDING, "CrashLoopBackOff")])
def test_a_crash_shows_whatever_is_not_known(outcome, expected):
    """Of headers that nobody can read, and of a change that is looked at."""
    verdict = Inspection("k", outcome, "MetadataUnavailable" if outcome else "Inspecting", "")
    pod = crashing(3, {"waiting": {"reason": "CrashLoopBackOff", "message": ""}})

    assert reasons(shown(pod, verdict=verdict))["Ready"] == ("False", expected)
