"""The prefix cache against a model of it: what was published is found, what is held stays, everything is conserved."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.scheduler.number_pool import NumberPool
from paceline_runtime.scheduler.pages import PagePool
from paceline_runtime.scheduler.prefix import PrefixCache

NUM_PAGES = 24
NUM_SLOTS = 5
ROOT = PrefixCache.root_name("")


def _ids(words):
    """A page of ids per letter, so that texts share prefixes often."""
    return [word for word in words for _ in range(PAGE_TOKENS)]


class CacheMachine(RuleBasedStateMachine):
    """Requests publish chains of pages, hold them, let go; pages run out and are evicted; snapshots come and go."""

    def __init__(self):
        super().__init__()
        self.pages = PagePool(NUM_PAGES)
        self.slots = NumberPool(NUM_SLOTS)
        self.cache = PrefixCache(self.pages, self.slots)
        self.held = []

    @rule(words=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def start(self, words):
        """Match, hold the match, and publish the rest of the text page by page as far as pages reach."""
        nodes = self.cache.match(ROOT, _ids(words), len(words))
        self.cache.acquire(nodes)
        assert [node.ids[0] for node in nodes] == words[: len(nodes)]
        private = []
        for word in words[len(nodes) :]:
            if not self.pages.num_free and not self.cache.evict(1):
                break
            (page,) = self.pages.take(1)
            node = self.cache.publish(ROOT, nodes[-1] if nodes else None, (word,) * PAGE_TOKENS, page)
            assert node is not None
            if node.page != page:
                private.append(page)
            nodes.append(node)
        self.held.append((nodes, private))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data):
        """Let go of everything one request holds."""
        nodes, private = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.release(nodes)
        self.pages.give_back(private)

    @rule(count=st.integers(1, 4))
    def evict(self, count):
        """Evicting frees what it says, never more than is unused."""
        before, unused = self.pages.num_free, self.cache.num_unused
        freed = self.cache.evict(count)
        assert freed == min(count, unused)
        assert self.pages.num_free == before + freed

    @precondition(lambda self: any(nodes for nodes, _ in self.held))
    @rule(data=st.data())
    def snapshot(self, data):
        """A held page is given a snapshot; one that has one refuses another."""
        nodes = data.draw(st.sampled_from([nodes for nodes, _ in self.held if nodes]))
        node = data.draw(st.sampled_from(nodes))
        slot = self.cache.take_snapshot_slot()
        if slot and not self.cache.attach_snapshot(node, slot):
            self.slots.give_back(slot)

    @invariant()
    def conserved(self):
        """Pages and slots add up and held pages are still there."""
        self.cache.check_integrity()
        private = [page for _, pages in self.held for page in pages]
        self.pages.check_integrity([*self.cache.pages(), *private])
        self.slots.check_integrity(self.cache.snapshot_slots())
        for nodes, _ in self.held:
            words = [node.ids[0] for node in nodes]
            assert self.cache.match(ROOT, _ids(words), len(words)) == nodes


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def _publish(cache, pages, words):
    nodes = []
    for word in words:
        if not pages.num_free:
            cache.evict(1)
        (page,) = pages.take(1)
        node = cache.publish(ROOT, nodes[-1] if nodes else None, (word,) * PAGE_TOKENS, page)
        if node.page != page:
            pages.give_back([page])
        nodes.append(node)
    cache.release(nodes)


def test_cheap_calls_do_not_push_out_a_long_conversation():
    """Fifty one-off prompts of two pages pass by a conversation of thirty pages in a pool of forty."""
    pages = PagePool(41)
    cache = PrefixCache(pages, NumberPool(1))
    conversation = list(range(30))
    _publish(cache, pages, conversation)
    for call in range(50):
        _publish(cache, pages, [1000 + call, 2000 + call])

    assert cache.num_evicted > 80
    assert len(cache.match(ROOT, _ids(conversation), 30)) >= 29


def test_what_is_never_used_again_does_leave():
    """Even a long prefix is evicted in the end, when only others are used."""
    pages = PagePool(41)
    cache = PrefixCache(pages, NumberPool(1))
    conversation = list(range(30))
    _publish(cache, pages, conversation)
    for call in range(2000):
        _publish(cache, pages, [1000 + call, 9000 + call])

    assert len(cache.match(ROOT, _ids(conversation), 30)) < 10


def _turn(cache, pages, slots, words):
    """A request whose prompt is `words`, with a live slot and a snapshot at its end; whether there was one before."""
    matched = cache.match(ROOT, _ids(words), len(words))
    was_hit = len(matched) == len(words) and matched[-1].snapshot > 0
    live = cache.take_snapshot_slot()
    _publish(cache, pages, words)
    snapshot = cache.take_snapshot_slot()
    if not cache.attach_snapshot(cache.match(ROOT, _ids(words), len(words))[-1], snapshot):
        slots.give_back(snapshot)
    slots.give_back(live)
    return was_hit


def test_snapshots_that_are_never_used_again_make_room_though_pages_abound():
    """Six long conversations that ended hold every slot; two short ones that go on get theirs back."""
    pages, slots = PagePool(2000), NumberPool(7)
    cache = PrefixCache(pages, slots)
    for conversation in range(6):
        _turn(cache, pages, slots, list(range(100 * conversation, 100 * conversation + 40)))
    hits = [_turn(cache, pages, slots, [1000 * user + page for page in range(5)]) for _ in range(100) for user in (1, 2)]

    assert not any(hits[:2])
    assert all(hits[-20:])
    assert cache.num_evicted == 0


def test_cheap_calls_do_not_push_out_the_snapshot_of_a_long_conversation():
    """Fifty one-off prompts of two pages pass by, with slots for ten."""
    pages, slots = PagePool(2000), NumberPool(11)
    cache = PrefixCache(pages, slots)
    conversation = list(range(30))
    _turn(cache, pages, slots, conversation)
    for call in range(50):
        _turn(cache, pages, slots, [1000 + call, 2000 + call])

    assert len(cache.snapshot_slots()) == 9
    assert _turn(cache, pages, slots, conversation)


def test_equal_names_of_different_tokens_are_a_miss(monkeypatch):
    """Should two pages ever share a name, the ids decide: no hit, and nothing is published over the other."""
    monkeypatch.setattr("paceline_runtime.scheduler.prefix._chain", lambda parent, ids: b"same")
    pages = PagePool(4)
    cache = PrefixCache(pages, NumberPool(1))
    cache.publish(ROOT, None, (1,) * PAGE_TOKENS, pages.take(1)[0])

    assert [] == cache.match(ROOT, _ids([2]), 1)
    assert cache.publish(ROOT, None, (2,) * PAGE_TOKENS, pages.take(1)[0]) is None
