"""Text of others, whatever it is, fits into a status: held against the bounds in the CRD."""

import re

import yaml
from hypothesis import given
from hypothesis import strategies as st
from operator_builders import CACHED, NOW, fits, make_model, make_pod
from source_tree import ROOT

from paceline_operator.gates.inspection import MAX_NUMBERS, MAX_TEXTS, facts_of
from paceline_operator.observed.observed import Observed
from paceline_operator.status import acceptance, wording
from paceline_operator.status.acceptance import Counters, parse_counters
from paceline_operator.status.status import MAX_COUNT, Findings, counts, status_of

CRD = yaml.safe_load((ROOT / "crds" / "speculativemodels.paceline.dev.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
STATUS = SCHEMA["properties"]["status"]["properties"]
CONDITION = STATUS["conditions"]["items"]["properties"]
ANYTHING = st.text(st.characters(codec=None), max_size=300)


@given(ANYTHING)
def test_any_reason_becomes_one_that_the_schema_takes(text):
    """And one that is fine stays as it is."""
    word = wording.reason(text)

    assert re.fullmatch(CONDITION["reason"]["pattern"], word)
    assert len(word) <= CONDITION["reason"]["maxLength"]
    assert wording.reason(word) == word


@given(ANYTHING)
def test_any_message_becomes_one_that_json_can_carry(text):
    """Half characters and control characters too; what comes back from the API server is what was sent."""
    shown = wording.message(text * 50)

    assert shown.encode().decode() == shown
    assert len(shown) <= CONDITION["message"]["maxLength"]
    assert wording.message(shown) == shown


def test_good_words_are_left_alone():
    """Reasons of kubelets and our own messages."""
    assert wording.reason("CreateContainerConfigError") == "CreateContainerConfigError"
    assert wording.reason("Back off: 5 (really)!") == "Backoff:5really"
    assert wording.reason("") == wording.reason("123") == wording.UNNAMED
    assert wording.message("ä: a\nb") == "ä: a\nb"


def test_nothing_that_pods_say_makes_a_status_invalid():
    """A kubelet's reason with blanks, a message without end, and facts and figures beyond all bounds."""
    model = make_model()
    state = {"waiting": {"reason": "no such reason!", "message": "\x00\ud800" * 40_000}}
    pod = make_pod("a", containerStatuses=[{"name": "server", "state": state}])
    deployment = {"kind": "Deployment", "metadata": {"name": "demo", "generation": 1}, "spec": {}, "status": {}}
    observed = Observed({("Deployment", "demo"): deployment}, [pod])
    found = {one["type"]: one for one in status_of(model, {}, Findings(observed, fits(model), CACHED, {}), NOW)["conditions"]}

    assert found["Available"]["reason"] == "nosuchreason"
    assert len(found["Available"]["message"]) <= wording.MAX_MESSAGE
    assert counts({"status": {"replicas": 10**9}})["replicas"] == MAX_COUNT <= STATUS["replicas"]["maximum"]


def test_facts_are_bounded_as_in_the_crd():
    """Fields that are none, of another type, or out of bounds are no facts."""
    fields = STATUS["model"]["properties"]
    said = {"architecture": "x" * 999, "blockSize": -1, "fetchedBytes": 1 << 70, "draftRevision": 5, "other": "x"}

    assert facts_of(said) == {"architecture": "x" * 253}
    assert facts_of("text") == facts_of(None) == {}
    assert {**MAX_TEXTS, **dict.fromkeys(MAX_NUMBERS, 0)}.keys() == fields.keys()
    assert {name: fields[name]["maxLength"] for name in MAX_TEXTS} == MAX_TEXTS
    assert MAX_NUMBERS["blockSize"] == fields["blockSize"]["maximum"]


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_figures_of_pods_are_bounded(drafted, accepted):
    """Whatever a pod counts, rates are rates and counts are counts."""
    text = f"paceline_spec_drafted_tokens_total {drafted!r}\npaceline_spec_accepted_tokens_total {accepted!r}\n"
    fields = acceptance.status_fields([parse_counters(text)] * 3, {}, NOW)

    assert fields == {} or 0 <= float(fields["rate"]) <= 1
    assert fields == {} or 0 < fields["draftedTokens"] < 1 << 63
    assert all(len(fields.get(name, "")) <= STATUS["acceptance"]["properties"][name]["maxLength"] for name in ("rate",))
    assert len(fields.get("tokensPerStep", "")) <= STATUS["acceptance"]["properties"]["tokensPerStep"]["maxLength"]


def test_a_busy_model_writes_no_figures():
    """An hour of steady drafting changes nothing; a reader is told when the rate moves, and when it collapses."""
    first = acceptance.status_fields([Counters(1000, 400, 500)], {}, NOW)
    steady = [acceptance.status_fields([Counters(1000 * n, 400 * n + n % 7, 500 * n)], first, NOW) for n in range(2, 120)]
    moved = acceptance.status_fields([Counters(9000, 3000, 4500)], first, NOW)
    low = acceptance.status_fields([Counters(9000, 200, 4500)], {}, NOW)
    collapsed = acceptance.status_fields([Counters(90_000, 900, 45_000)], low, NOW)

    assert steady == [first] * 118
    assert (moved["rate"], collapsed["rate"]) == ("0.333", "0.010")
    assert acceptance.verdict("dflash", collapsed)[1] == "AcceptanceCollapsed"


def test_a_bare_status_has_nobodys_text():
    """What the operator needs to know stays: conditions, the outcome, the image, who manages."""
    status = {
        "manager": "m",
        "runtimeImage": "i",
        "model": {"architecture": "x"},
        "inspection": {"key": "k", "outcome": "Compatible", "reason": "r", "message": "theirs"},
        "conditions": [{"type": "Ready", "status": "False", "reason": "r", "message": "theirs"}],
    }
    found = wording.bare(status)

    assert "theirs" not in str(found)
    assert (found["manager"], found["runtimeImage"], found["inspection"]["outcome"]) == ("m", "i", "Compatible")
    assert [one["type"] for one in found["conditions"]] == ["Ready"]
