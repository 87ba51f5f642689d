"""The queue of models: merged, one at a time, later after failures. A state machine drives it without waiting."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline_operator.loop.work_queue import MAX_BACKOFF_S, WorkQueue


class Timer:
    """A timer handle that a test fires by hand."""

    def __init__(self, when, callback):
        self._when, self.callback, self.is_cancelled = when, callback, False

    def when(self):
        return self._when

    def cancel(self):
        self.is_cancelled = True


class QueueMachine(RuleBasedStateMachine):
    """Any order of requests and ends: nothing is lost, nothing is worked on twice at a time."""

    def __init__(self):
        super().__init__()
        self.queue = WorkQueue(lambda delay_s, callback: None)
        self.owed, self.working = set(), set()

    @rule(key=st.integers(0, 3))
    def ask(self, key):
        self.queue.add(key)
        self.owed.add(key)

    @precondition(lambda self: len(self.queue))
    @rule()
    def take(self):
        step = self.queue.get()
        with pytest.raises(StopIteration) as ended:
            step.send(None)
        key = ended.value.value
        assert key not in self.working
        assert key in self.owed
        self.working.add(key)
        self.owed.discard(key)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data):
        key = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(key)
        self.queue.done(key)

    @invariant()
    def every_request_is_queued_or_follows_the_work(self):
        self.queue.check_integrity()
        assert len(self.queue) == len(self.owed - self.working)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=50, deadline=None)


async def test_delays_double_up_to_a_limit_and_start_over_after_success():
    """A model that fails for ever costs an attempt a minute."""
    queue = WorkQueue(lambda delay_s, callback: Timer(delay_s, callback))

    delays = [queue.add_failed("a") for _ in range(10)]
    queue.succeeded("a")

    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == MAX_BACKOFF_S
    assert queue.add_failed("a") == 0.5
    assert queue.add_failed("a", at_least_s=30) == 30


async def test_the_earlier_of_two_delays_counts():
    """A later wish does not postpone an earlier one."""
    now, timers = asyncio.get_running_loop().time(), []

    def call_later(delay_s, callback):
        timers.append(Timer(now + delay_s, callback))
        return timers[-1]

    queue = WorkQueue(call_later)
    for delay_s in (300, 600, 100):
        queue.add_later("a", delay_s)

    assert [round(timer.when() - now) for timer in timers if not timer.is_cancelled] == [100]


async def test_a_request_now_replaces_one_for_later():
    """No second look follows a look that has happened."""
    timers = []
    queue = WorkQueue(lambda delay_s, callback: timers.append(Timer(delay_s, callback)) or timers[-1])
    queue.add_later("a", 5)
    queue.add("a")

    assert timers[0].is_cancelled
    assert await queue.get() == "a"


async def test_a_forgotten_key_has_no_timer():
    """A deleted model does not come back."""
    timers = []
    queue = WorkQueue(lambda delay_s, callback: timers.append(Timer(delay_s, callback)) or timers[-1])
    queue.add_failed("a")
    queue.forget("a")

    assert timers[0].is_cancelled


async def test_a_waiting_worker_wakes_up():
    """A worker that came first gets the first key."""
    queue = WorkQueue(asyncio.get_running_loop().call_later)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")

    assert await worker == "a"
