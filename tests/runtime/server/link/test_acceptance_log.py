"""Drafts that nobody accepts are told in the log, once, as far as the engine's counters tell it."""

import asyncio

import pytest

from paceline_runtime import messages
from paceline_runtime.server.link.engine_client import EngineClient


def counters(drafted: list[int], accepted: list[int]) -> messages.Stats:
    """What the engine has counted since it started."""
    names = "num_running num_waiting num_free_pages num_cached_pages num_pages preemptions prefix_query_tokens"
    names += " prefix_hit_tokens evicted_pages prompt_tokens generated_tokens steps"
    zeros = dict.fromkeys(names.split(), 0)
    return messages.Stats(**zeros, drafted_by_position=drafted, accepted_by_position=accepted)


class ScriptedSocket:
    """Sends the given messages, then the engine is gone."""

    def __init__(self, sent: list[messages.Message]) -> None:
        self._frames = [messages.encode(message) for message in sent]

    async def recv_multipart(self) -> list[bytes]:
        if not self._frames:
            raise OSError("the engine is gone")
        return [self._frames.pop(0)]


def warnings_after(caplog: pytest.LogCaptureFixture, *stats: messages.Stats) -> list[str]:
    """The log of a client whose engine reported these counters."""
    with pytest.raises(OSError, match="gone"):
        asyncio.run(EngineClient(ScriptedSocket(list(stats))).listen())
    return [record.getMessage() for record in caplog.records if record.name.endswith("acceptance_log")]


def test_a_collapse_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """By what was drafted since the last look: earlier luck does not hide it."""
    totals = [(1000, 900), (3000, 2500), (6000, 2510), (9000, 2520), (12000, 4000), (12100, 4000)]
    found = warnings_after(caplog, *(counters([d // 2, d - d // 2], [a // 2, a - a // 2]) for d, a in totals))

    assert len(found) == 2
    assert found[0].startswith("10 of the last 3000 drafted tokens were accepted: use the draft that was trained for")
    assert found[1].startswith("1480 of the last 3000 drafted tokens were accepted: drafts help again")


def test_too_few_drafts_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A new server, one without a draft, and one whose drafts are accepted."""
    assert warnings_after(caplog, counters([1999], [0])) == []
    assert warnings_after(caplog, counters([], []), counters([], [])) == []
    assert warnings_after(caplog, counters([5000], [101]), counters([9000], [300])) == []
