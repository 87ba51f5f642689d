"""The policy driven by made-up results: conservation after every operation, no leak, no starvation of the oldest."""

import random
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.scheduler.prefix import PrefixCache
from paceline_runtime.scheduler.request import make_request
from paceline_runtime.scheduler.room import SchedulerConfig
from paceline_runtime.scheduler.scheduler import MustDrainError, Scheduler
from paceline_runtime.step import RowResult, StepResult

MAX_MODEL_LEN = 320


class Driver:
    """A scheduler with a device that answers any plan: runs of random length, random tokens."""

    def __init__(self, *, num_drafts=3, lag=0, num_pages=14, max_running=4, num_state_slots=0, seed=0, end_chance=0.01):
        self.config = SchedulerConfig(
            num_pages=num_pages,
            max_running=max_running,
            max_model_len=MAX_MODEL_LEN,
            num_drafts=num_drafts,
            max_steps_in_flight=1 + lag,
            num_state_slots=num_state_slots,
            eos_ids=frozenset({0}),
        )
        self.scheduler = Scheduler(self.config)
        self.random = random.Random(seed)
        self.lag = lag
        self.end_chance = end_chance
        self.in_flight = deque()
        self.lengths = {}
        self.owners = {}
        self.pages = {}
        self.finished = {}
        self.num_added = 0

    def add(self, num_prompt, max_tokens, *, shared=0):
        """Queue a prompt whose first `shared` tokens are common to all; returns its id, or None when refused."""
        if self.scheduler.room.refusal(num_prompt, max_tokens) is not None:
            return None
        self.num_added += 1
        name = str(self.num_added)
        prompt = [9] * min(shared, num_prompt) + [self.random.randrange(1, 50) for _ in range(num_prompt - shared)]
        submit = Submit(request_id=name, prompt_ids=prompt, params=SamplingParams(max_tokens=max_tokens))
        self.scheduler.add(make_request(submit, MAX_MODEL_LEN, 0, PrefixCache.root_name("")))
        return name

    def step(self, budget=128):
        """Plan, launch, and collect what is due."""
        try:
            plan = self.scheduler.plan(budget)
        except MustDrainError:
            while self.in_flight:
                self._collect()
            plan = self.scheduler.plan(budget)
        if not plan.is_empty:
            self._check_pages(plan)
            self.in_flight.append((plan, self._results(plan)))
        while self.in_flight and (plan.is_empty or len(self.in_flight) > self.lag):
            self._collect()
        return plan

    def _results(self, plan):
        decode = []
        for row in plan.decode:
            count = self.random.randrange(1, 2 + self.config.num_drafts)
            decode.append(RowResult(tuple(self._token() for _ in range(count)), self.config.num_drafts))
            self.lengths[row.seat] += count
        prefill = []
        for chunk in plan.prefill:
            self.lengths[chunk.seat] = chunk.start + chunk.num_tokens
            prefill.append(RowResult((self._token(),) if chunk.samples else ()))
        return StepResult(tuple(decode), tuple(prefill))

    def _token(self):
        return 0 if self.random.random() < self.end_chance else self.random.randrange(1, 50)

    def _check_pages(self, plan):
        """Every position that the step may write lies in the row's own pages; pages of two rows never overlap in writes."""
        for start in plan.starts:
            self.lengths[start.seat], self.owners[start.seat] = start.num_cached, self.scheduler.seats.at(start.seat)
            self.pages[start.seat] = list(start.pages)
        for change in plan.pages:
            self.pages[change.seat][change.first :] = change.pages
        written = []
        for row in (*plan.decode, *plan.prefill):
            request = self.scheduler.seats.at(row.seat)
            assert self.owners[row.seat] is request, "a start was not launched"
            assert self.pages[row.seat] == request.pages, "the device knows other pages"
            assert row.num_pages == len(request.pages)
        for row in plan.decode:
            first, pages = self.lengths[row.seat], self.pages[row.seat]
            last = min(first + self.config.num_drafts, MAX_MODEL_LEN - 1)
            assert last // 64 < len(pages), "a decode step would write outside its pages"
            written += [pages[index] for index in range(first // 64, last // 64 + 1)]
        for chunk in plan.prefill:
            pages = self.pages[chunk.seat]
            last = chunk.start + chunk.num_tokens - 1
            assert last // 64 < len(pages), "a chunk would write outside its pages"
            assert chunk.is_last or (last + 1) % 64 == 0, "a chunk that is not the last ends inside a page"
            written += [pages[index] for index in range(chunk.start // 64, last // 64 + 1)]
        assert len(written) == len(set(written)), "two rows write the same page"

    def _collect(self):
        plan, results = self.in_flight.popleft()
        for commit in self.scheduler.commit(plan, results):
            if commit.cut.reason:
                self.finished[commit.request.id] = commit.request

    def run(self, limit=10_000):
        """Step to the end."""
        while self.scheduler.has_work or self.in_flight:
            self.step()
            limit -= 1
            assert limit, "the scheduler makes no progress"


class SchedulerMachine(RuleBasedStateMachine):
    """Anything in any order: submit, step, abort; under both lags, with and without recurrent state."""

    @initialize(lag=st.integers(0, 1), hybrid=st.booleans(), steps=st.sampled_from([0, 1, 3, 7]), seed=st.integers(0, 99))
    def build(self, lag, hybrid, steps, seed):
        """A small pool, so that pages and slots run out."""
        self.driver = Driver(lag=lag, num_drafts=steps, num_pages=11, num_state_slots=9 if hybrid else 0, seed=seed)

    @rule(num_prompt=st.integers(1, 300), max_tokens=st.integers(1, 150), shared=st.sampled_from([0, 64, 130]))
    def submit(self, num_prompt, max_tokens, shared):
        """A request of any size, often sharing a prefix."""
        self.driver.add(num_prompt, max_tokens, shared=min(shared, num_prompt))

    @rule(budget=st.sampled_from([0, 64, 100, 512]))
    def step(self, budget):
        """One step with whatever prefill budget."""
        self.driver.step(budget)

    @rule(data=st.data())
    def abort(self, data):
        """End any request wherever it is, or one that is long gone."""
        if self.driver.num_added:
            self.driver.scheduler.abort(str(data.draw(st.integers(1, self.driver.num_added))))

    @invariant()
    def conserved(self):
        """Nothing lost, nothing twice."""
        if hasattr(self, "driver"):
            self.driver.scheduler.check_integrity()

    def teardown(self):
        """Everything comes to its end, and then nothing is held but published pages."""
        if hasattr(self, "driver"):
            self.driver.run()
            scheduler = self.driver.scheduler
            scheduler.check_integrity()
            assert not scheduler.running
            assert scheduler.pages.num_free + len(scheduler.prefix) == self.driver.config.num_pages - 1
            assert scheduler.prefix.num_unused == len(scheduler.prefix)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("lag", [0, 1])
def test_ten_thousand_requests_with_aborts_leak_nothing(lag):
    """A fifth is aborted somewhere; every other one ends with its tokens, and all pages come back."""
    driver = Driver(lag=lag, num_pages=40, max_running=8, num_state_slots=20, seed=lag)
    aborted = set()
    for _ in range(10_000):
        name = driver.add(driver.random.randrange(1, 120), driver.random.randrange(1, 12), shared=0)
        if driver.random.random() < 0.2:
            aborted.add(name)
        if len(driver.scheduler.waiting) > 6:
            driver.step()
        if aborted and driver.random.random() < 0.2:
            driver.scheduler.abort(driver.random.choice(sorted(aborted)))
    driver.run(limit=200_000)
    driver.scheduler.check_integrity()
    scheduler = driver.scheduler

    assert driver.num_added == 10_000
    assert all(str(number) in driver.finished for number in range(1, 10_001) if str(number) not in aborted)
    assert scheduler.pages.num_free + scheduler.prefix.num_unused == 39
    assert scheduler.seats.free.num_free == 8


def test_the_newest_gives_way_and_comes_back():
    """When pages run out the newest request is preempted, keeps its tokens, and still finishes."""
    driver = Driver(num_pages=9, max_running=3, end_chance=0.0)
    names = [driver.add(100, 200, shared=0) for _ in range(3)]
    driver.run()

    assert driver.scheduler.num_preemptions > 0
    assert set(names) == set(driver.finished)
    assert 0 == driver.finished[names[0]].num_preemptions, "the oldest gave way"


def test_a_request_that_comes_back_to_all_of_its_pages_is_started_nonetheless():
    """With its pages still cached nothing is to be computed, yet the device must learn of its row."""
    driver = Driver(num_drafts=0, num_pages=5, max_running=2, end_chance=0.0)
    driver.add(60, 62)
    second = driver.add(100, 100)
    starts = []
    while driver.scheduler.has_work:
        plan = driver.step()
        starts += [(start, driver.owners[start.seat], plan) for start in plan.starts]
    last, request, plan = starts[-1]

    assert (second, 128, 129) == (request.id, last.num_cached, len(last.tokens))
    assert not plan.decode
    assert not plan.prefill
    assert not plan.is_empty


def test_results_of_a_request_that_left_its_seat_are_not_its_successors():
    """The seat is taken anew before the step in flight is collected; what it gave the former request is dropped."""
    driver = Driver(lag=1, max_running=1, end_chance=0.0)
    first = driver.add(10, 50)
    driver.step()
    driver.step()
    plan, results = driver.in_flight.popleft()
    driver.scheduler.abort(first)
    driver.add(20, 50)
    after = driver.scheduler.plan(128)

    assert [row.seat for row in plan.decode] == [start.seat for start in after.starts] == [1]
    assert all(row.token_ids for row in results.decode)
    assert [] == driver.scheduler.commit(plan, results)
    (successor,) = driver.scheduler.running
    assert (20, 1) == (len(successor.tokens), successor.num_in_flight)


def test_no_page_is_held_twice():
    """K/V that is cached where no state is: computed anew, it takes the place of the copy, or the pool would never suffice."""
    driver = Driver(num_pages=8, max_running=1, num_state_slots=6, end_chance=0.0)
    driver.add(250, 5, shared=250)
    driver.run()
    prefix = driver.scheduler.prefix
    for node in prefix.match(PrefixCache.root_name(""), [9] * 192, 3):
        prefix.drop_snapshot(node)
    name = driver.add(300, 20, shared=250)
    driver.step(256)

    (request,) = driver.scheduler.running
    assert (0, 4) == (request.num_cached, len(request.nodes))
    assert [node.page for node in request.nodes] == request.pages[:4]
    driver.run(limit=100)
    assert name in driver.finished


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "words"),
    [
        (0, 5, "empty"),
        (MAX_MODEL_LEN, None, "the context holds 320"),
        (300, 50, "ask for at most 20 tokens"),
        (250, 60, "--num-pages"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(num_prompt, max_tokens, words):
    """With the sizes and the remedy in the message."""
    driver = Driver(num_pages=4)

    assert words in driver.scheduler.room.refusal(num_prompt, max_tokens)


def test_a_request_that_fits_exactly_is_not_refused():
    """Prompt and answer together may fill the context."""
    assert Driver().scheduler.room.refusal(300, 20) is None


def test_decoding_goes_on_while_a_long_prompt_is_prefilled():
    """Every step with prompt tokens also steps the request that decodes."""
    driver = Driver(num_pages=20, end_chance=0.0)
    driver.add(10, 200)
    driver.step()
    driver.add(300, 5)
    plans = [driver.step(64) for _ in range(4)]

    assert all(len(plan.decode) == 1 and len(plan.prefill) == 1 for plan in plans)
