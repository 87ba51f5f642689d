"""The prefix cache: published pages in a tree of chain hashes, with recurrent-state snapshots at some of its nodes.

The scheduler alone uses it. The hash of (parent, its 64 ids) names a page; `extra_key` (adapter, images, salt) names the root,
so requests with different keys never meet. A match compares ids: a collision is a miss, never a wrong hit. It knows nothing of
requests, tensors or policies of admission.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.scheduler.number_pool import NumberPool
from paceline_runtime.scheduler.pages import PagePool

_HASH_BYTES = 16
_PAGES_PER_UNIT_OF_COST = 2
"""Pages of context that add a first page's cost once more: attention grows with them, and so does the wait for a lost tail."""


@dataclass(slots=True, eq=False)
class Node:
    """One published page. `num_refs` requests use it; it can be evicted when that and `num_children` are 0."""

    name: bytes
    parent: Node | None
    ids: tuple[int, ...]
    page: int
    depth: int
    priority: float = 0.0
    num_refs: int = 0
    num_children: int = 0
    snapshot: int = 0
    queued: bool = field(default=False, repr=False)


class PrefixCache:
    """Published pages, evicted by GreedyDual: priority = clock + cost, the clock being the priority evicted last.

    Recomputing a page costs more the deeper it lies, so a stream of short one-off prompts wears off the short prompts first
    and a long conversation last (Young 1994; Cherkasova 1998). Leaves go before their parents. Snapshots are taken away by the
    same clock, which they move too: they run out where pages never do.
    """

    def __init__(self, pages: PagePool, snapshots: NumberPool) -> None:
        self._pages = pages
        self._snapshots = snapshots
        self._nodes: dict[bytes, Node] = {}
        self._heap: list[tuple[float, int, Node]] = []
        self._tick = count()
        self._clock = 0.0
        self.num_evicted = 0
        self.num_unused = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @staticmethod
    def root_name(extra_key: str) -> bytes:
        """Name of the empty prefix under `extra_key`."""
        return blake2b(extra_key.encode(), digest_size=_HASH_BYTES).digest()

    def match(self, root: bytes, ids: Sequence[int], max_pages: int) -> list[Node]:
        """The longest chain of published pages that `ids` begins with, at most `max_pages` of them. Changes nothing."""
        chain: list[Node] = []
        name = root
        for index in range(min(max_pages, len(ids) // PAGE_TOKENS)):
            page_ids = tuple(ids[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            name = _chain(name, page_ids)
            node = self._nodes.get(name)
            if node is None or node.ids != page_ids:
                break
            chain.append(node)
        return chain

    def acquire(self, nodes: Iterable[Node]) -> None:
        """Hold nodes against eviction and count them as used now."""
        for node in nodes:
            self.num_unused -= node.num_refs == 0
            node.num_refs += 1
            node.priority = self._clock + _cost(node.depth)

    def release(self, nodes: Sequence[Node]) -> None:
        """Let go of nodes held by one request, deepest last in `nodes`."""
        for node in reversed(nodes):
            assert node.num_refs > 0, "releasing a node nobody holds"
            node.num_refs -= 1
            node.priority = self._clock + _cost(node.depth)
            self.num_unused += node.num_refs == 0
            self._offer(node)

    def publish(self, root: bytes, parent: Node | None, page_ids: tuple[int, ...], page: int) -> Node | None:
        """Name `page` as the continuation of `parent` and hold it for the caller.

        Returns the node of that name, whose page is another one when the same tokens were published before; None on a hash
        collision, after which the caller publishes nothing more of that request.
        """
        assert len(page_ids) == PAGE_TOKENS, "only full pages are published"
        name = _chain(parent.name if parent else root, page_ids)
        node = self._nodes.get(name)
        if node is None:
            node = Node(name, parent, page_ids, page, parent.depth + 1 if parent else 0)
            self._nodes[name] = node
            self.num_unused += 1
            if parent is not None:
                parent.num_children += 1
        elif node.ids != page_ids or node.parent is not parent:
            return None
        self.acquire([node])
        return node

    def attach_snapshot(self, node: Node, slot: int) -> bool:
        """Give `node` the snapshot in `slot`; False (and the slot stays the caller's) when it has one already."""
        if node.snapshot:
            return False
        node.snapshot = slot
        return True

    def evict(self, count: int) -> int:
        """Free up to `count` pages nobody uses, cheapest first; returns how many."""
        freed = 0
        while freed < count and self._heap:
            priority, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.priority > priority:  # used since it was queued
                self._offer(node)
            elif not node.num_refs and not node.num_children:
                self._remove(node)
                freed += 1
        self.num_evicted += freed
        return freed

    def take_snapshot_slot(self) -> int:
        """A slot for a new snapshot, taken from the node whose snapshot is cheapest when none is free; 0 when there is none."""
        if not self._snapshots.num_free:
            holders = [node for node in self._nodes.values() if node.snapshot]
            if not holders:
                return 0
            victim = min(holders, key=lambda node: node.priority)
            self._clock = max(self._clock, victim.priority)
            self.drop_snapshot(victim)
        return self._snapshots.take()

    def drop_snapshot(self, node: Node) -> None:
        """Free the snapshot of `node`, if it still has one; its page stays."""
        if node.snapshot:
            self._snapshots.give_back(node.snapshot)
            node.snapshot = 0

    def clear(self) -> None:
        """Evict everything nobody uses."""
        self.evict(len(self._nodes))

    def snapshot_slots(self) -> list[int]:
        """Slots held by nodes, for integrity checks."""
        return [node.snapshot for node in self._nodes.values() if node.snapshot]

    def pages(self) -> list[int]:
        """Pages held by nodes, for integrity checks."""
        return [node.page for node in self._nodes.values()]

    def check_integrity(self) -> None:
        """Children and references add up, every name is its chain's, evictable nodes are queued."""
        children: dict[bytes, int] = {}
        for name, node in self._nodes.items():
            assert node.name == name, "a node is filed under another's name"
            if node.parent is not None:
                assert self._nodes.get(node.parent.name) is node.parent, "a node outlives its parent"
                assert _chain(node.parent.name, node.ids) == name, "a name does not follow from its parent"
                children[node.parent.name] = children.get(node.parent.name, 0) + 1
        for name, node in self._nodes.items():
            assert node.num_children == children.get(name, 0), "child counts are off"
            assert node.queued or node.num_refs or node.num_children, "an evictable node would never be evicted"
            assert node.num_refs <= (node.parent.num_refs if node.parent else node.num_refs), "a chain is held in part"
        assert self.num_unused == sum(not node.num_refs for node in self._nodes.values()), "unused nodes are miscounted"

    def _offer(self, node: Node) -> None:
        if not node.num_refs and not node.num_children and not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.priority, next(self._tick), node))

    def _remove(self, node: Node) -> None:
        self._clock = max(self._clock, node.priority)
        del self._nodes[node.name]
        self.num_unused -= 1
        self._pages.give_back([node.page])
        self.drop_snapshot(node)
        parent = node.parent
        if parent is not None:
            parent.num_children -= 1
            self._offer(parent)


def _chain(parent: bytes, ids: tuple[int, ...]) -> bytes:
    return blake2b(array("q", ids).tobytes(), key=parent, digest_size=_HASH_BYTES).digest()


def _cost(depth: int) -> float:
    return 1.0 + depth / _PAGES_PER_UNIT_OF_COST
