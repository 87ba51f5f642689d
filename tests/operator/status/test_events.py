"""Events out of conditions that turned."""

import pytest
from operator_builders import NOW, make_resource

from paceline_operator.status.events import MAX_MESSAGE, event
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
