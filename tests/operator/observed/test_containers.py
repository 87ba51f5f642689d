"""How containers ended: the name of a crash, the line that tells it, and what is a crash loop."""

from datetime import timedelta

import pytest
from operator_builders import NOW, make_pod

from paceline_operator.observed.containers import CALM_S, LONG_RUN_S, ending, is_held, looping, own_end, telling_line

USAGE = """usage: paceline serve [-h] --model PATH [--host HOST]
                      [--port PORT]
  --failed-things N  what has failed
paceline serve: error: argument --port: invalid int value: 'x'"""
TRACEBACK = """Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise ValueError("no room")
ValueError: no room for 3 pages
"""


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(code=1, message="", reason="Error", ran_s=5.0):
    times = {"startedAt": at(-ran_s), "finishedAt": at(0)}
    return {"terminated": {"exitCode": code, "message": message, "reason": reason, **times}}


def server(restarts=0, state=None, last=None, name="server"):
    return {"name": name, "restartCount": restarts, "state": state or {}, "lastState": last or {}}


@pytest.mark.parametrize(
    "status, words",
    [
        (server(state=ended(137, reason="OOMKilled")), "server: OOMKilled, exit code 137"),
        (server(1, last=ended(3, "no such model")), "server: exit code 3, 1 restart: no such model"),
        (server(4, {"running": {}}, ended(2, USAGE)), "server: exit code 2, 4 restarts: " + USAGE.splitlines()[-1]),
        (server(0, ended(1, TRACEBACK)), "server: exit code 1: ValueError: no room for 3 pages"),
        (server(0, ended(1, "all is well\nbye\n")), "server: exit code 1: bye"),
        (server(0, ended(0, "done")), ""),
        (server(0, {"running": {}}), ""),
    ],
)
def test_a_crash_has_its_name(status, words):
    """The container, the kubelet's reason where it has one, exit code, restarts, and the line that tells."""
    assert ending(status) == words


def test_one_line_stays_whole_and_many_are_bounded():
    """A verdict of the inspect Job is one long line."""
    assert telling_line("x" * 4000) == "x" * 4000
    assert len(telling_line("a\n" + "error " * 400)) == 500
    assert telling_line("") == ""


@pytest.mark.parametrize(
    "status, is_looping",
    [
        (server(1, {"running": {}}, ended()), False),
        (server(2, {"running": {}}, ended()), True),
        (server(2, {"waiting": {"reason": "CrashLoopBackOff"}}, ended()), True),
        (server(2, ended()), True),
        (server(9, {"running": {}}, ended(ran_s=LONG_RUN_S + 1)), False),
        (server(2, {"running": {}}, ended(0)), False),
        (server(2, {"running": {}}, {"terminated": {"exitCode": 1, "startedAt": "soon", "finishedAt": None}}), True),
    ],
)
def test_a_crash_loop_begins_at_the_second_restart(status, is_looping):
    """Whatever the container does at the moment; a long run before its end was no crash loop."""
    assert bool(looping([make_pod("a", containerStatuses=[status])], NOW)) is is_looping


@pytest.mark.parametrize("ready_s, is_looping", [(0, True), (CALM_S - 1, True), (CALM_S, False)])
def test_a_crash_loop_ends_when_the_pod_has_been_ready_for_a_while(ready_s, is_looping):
    """A moment between two crashes is none."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": at(-ready_s)}
    pod = make_pod("a", conditions=[ready], containerStatuses=[server(5, {"running": {}}, ended())])

    assert bool(looping([pod], NOW)) is is_looping


PROXY = server(name="istio-proxy", state={"running": {}})


@pytest.mark.parametrize(
    "statuses, code, held",
    [
        ([PROXY, server(name="inspect", state=ended(0))], 0, True),
        ([PROXY, server(name="inspect", state=ended(1))], 1, True),
        ([PROXY, server(name="inspect", state={"running": {}})], None, False),
        ([server(name="inspect", state=ended(0))], 0, False),
        ([server(name="istio-proxy", state=ended(0)), server(name="inspect", state=ended(0))], 0, False),
        ([PROXY], None, False),
        ([PROXY, server(name="fetch-target", state=ended(0)), server(name="fetch-draft", state=ended(5))], 5, True),
        ([PROXY, server(name="fetch-target", state=ended(0)), server(name="fetch-draft", state={"running": {}})], None, False),
    ],
)
def test_a_jobs_end_is_read_from_our_own_containers(statuses, code, held):
    """A proxy that goes on neither hides the end nor is taken for one."""
    pod = make_pod("a", containerStatuses=statuses)

    assert (own_end(pod) or {}).get("exitCode") == code
    assert is_held(pod) is held


def test_all_of_our_containers_must_have_ended():
    """A kubelet may list them one after another."""
    assert own_end(make_pod("a", containerStatuses=[server(name="fetch-target", state=ended(0))]), 2) is None
