"""Events out of conditions that turned."""

from dataclasses import replace
from datetime import timedelta

import pytest
from operator_builders import NOW, make_resource

from paceline_operator.status.events import MAX_MESSAGE, again, event
from paceline_operator.status.status import Change


@pytest.mark.parametrize(
    "change, type_",
    [
        (Change("Compatible", "False", "VocabMismatch", "x" * 5000), "Warning"),
        (Change("Progressing", "False", "Settled", ""), "Normal"),
        (Change("WeightsCached", "False", "FetchFailed", ""), "Warning"),
        (Change("Available", "False", "ImagePullBackOff", ""), "Warning"),
        (Change("Available", "False", "FailedCreate", ""), "Warning"),
        (Change("Available", "False", "Loading", ""), "Normal"),
        (Change("Ready", "True", "Serving", ""), "Normal"),
    ],
)
def test_event_of_a_change(change, type_):
    """Only what somebody should look at is a warning; Kubernetes bounds the message and wants a reason."""
    found = event(make_resource(), change, "operator-a", NOW)

    assert (found["type"], found["reason"]) == (type_, change.reason)
    assert len(found["message"]) <= MAX_MESSAGE
    assert found["involvedObject"]["uid"] == "uid-1"


def test_what_is_told_again_counts_up():
    """One Event for a condition's status and reason, however often it comes back and whatever the words."""
    change = Change("Available", "False", "CrashLoopBackOff", "3 restarts")
    first = event(make_resource(), change, "a", NOW)
    second = event(make_resource(), replace(change, message="4 restarts"), "b", NOW + timedelta(hours=1))
    others = [replace(change, status="True"), replace(change, reason="Loading"), replace(change, type="Ready")]
    names = {event(make_resource(), other, "a", NOW)["metadata"]["name"] for other in others}
    patch = again(second, first)

    assert first["metadata"]["name"] == second["metadata"]["name"]
    assert len(names | {first["metadata"]["name"]}) == 4
    assert (patch["count"], patch["message"]) == (2, "Available is False: 4 restarts")
    assert patch["lastTimestamp"] > first["lastTimestamp"]
