"""Who runs: a request takes a seat, its cached prefix and a state slot when it starts, and gives all back when it leaves.

The scheduler uses it and decides when. It knows no budget, no results and no order among requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.scheduler.number_pool import NumberPool
from paceline_runtime.scheduler.pages import PagePool
from paceline_runtime.scheduler.prefix import PrefixCache
from paceline_runtime.scheduler.request import Phase, Request
from paceline_runtime.scheduler.room import Room, SchedulerConfig
from paceline_runtime.scheduler.snapshots import Snapshots
from paceline_runtime.step import PageChange, Start


class Seats:
    """The running requests, oldest first, and the seats that they sit in."""

    def __init__(self, config: SchedulerConfig, pages: PagePool, prefix: PrefixCache, room: Room, snapshots: Snapshots) -> None:
        self.free = NumberPool(config.max_running + 1)
        self._sitting: dict[int, Request] = {}
        self.running: list[Request] = []
        self._use_prefix_cache = config.use_prefix_cache
        self._pages, self._prefix, self._room, self._snapshots = pages, prefix, room, snapshots
        self._released: list[int] = []

    @property
    def can_enter(self) -> bool:
        """Whether a seat and a live state slot are to be had."""
        return self.free.num_free > 0 and self._snapshots.can_start

    def at(self, seat: int) -> Request:
        """Who sits in a seat that is taken."""
        return self._sitting[seat]

    def owner(self, seat: int, plan_number: int) -> Request | None:
        """The request of a plan's row in this seat; None when it has left since."""
        request = self._sitting.get(seat)
        return request if request is not None and request.started <= plan_number else None

    def enter(self, request: Request, plan_number: int) -> Start | None:
        """Give a waiting request a seat and its cached prefix; None while its whole prompt would not fit beside the others."""
        max_hit = (len(request.tokens) - 1) // PAGE_TOKENS if self._use_prefix_cache else 0
        matched = self._prefix.match(request.root, request.tokens, max_hit)
        hit = self._snapshots.cut_hit(matched)
        if not self._room.fits(request, hit, self.running):
            return None
        self._prefix.acquire(hit)
        request.nodes, request.pages = list(hit), [node.page for node in hit]
        request.seat, request.started, request.num_pages_told = self.free.take(), plan_number, len(hit)
        self._sitting[request.seat] = request
        request.num_computed = len(hit) * PAGE_TOKENS
        request.phase = Phase.PREFILL if request.num_computed < request.num_to_prefill else Phase.DECODE
        if request.num_cached is None:
            request.num_cached = request.num_computed
        restore = self._snapshots.start(request, len(matched), hit)
        self.running.append(request)
        return Start(
            seat=request.seat,
            params=request.params,
            key=request.key,
            num_prompt=request.num_prompt,
            tokens=tuple(request.tokens),
            num_cached=request.num_computed,
            pages=tuple(request.pages),
            state_slot=request.state_slot,
            restore_slot=restore,
        )

    def leave(self, request: Request) -> None:
        """Take back the seat, the pages and the state of a running request; published pages stay cached."""
        if request.seat:
            self._released.append(request.seat)
            self.free.give_back(request.seat)
            del self._sitting[request.seat]
            self._snapshots.leave(request)
            self._prefix.release(request.nodes)
            self._pages.give_back(_private_pages(request))
            self.running.remove(request)
        request.seat, request.pages, request.nodes = 0, [], []

    def publish(self, request: Request, num_tokens: int) -> None:
        """Name the full pages among the first `num_tokens` committed tokens.

        Where others published the same page meanwhile, or it was cached without a state, their copy alone stays: a request that
        held both would keep pages from itself. Steps in flight may still read the other copy: its next writer comes after.
        """
        if not self._use_prefix_cache:
            return
        while request.can_publish and (len(request.nodes) + 1) * PAGE_TOKENS <= num_tokens:
            index = len(request.nodes)
            ids = tuple(request.tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS])
            parent = request.nodes[-1] if request.nodes else None
            node = self._prefix.publish(request.root, parent, ids, request.pages[index])
            if node is None:
                request.can_publish = False
                return
            request.nodes.append(node)
            if node.page != request.pages[index]:
                self._pages.give_back([request.pages[index]])
                request.pages[index] = node.page
                request.num_pages_told = min(request.num_pages_told, index)

    def tell_pages(self, requests: Iterable[Request]) -> tuple[PageChange, ...]:
        """What the device does not know yet of these requests' pages."""
        changes = []
        for request in requests:
            if (told := request.num_pages_told) < len(request.pages):
                changes.append(PageChange(request.seat, told, tuple(request.pages[told:])))
                request.num_pages_told = len(request.pages)
        return tuple(changes)

    def take_released(self) -> tuple[int, ...]:
        """Seats given back since this was asked last."""
        released, self._released = tuple(self._released), []
        return released

    def check_integrity(self) -> None:
        """Pages, seats and slots are conserved; nothing is owned twice."""
        private = [page for request in self.running for page in _private_pages(request)]
        self._pages.check_integrity([*private, *self._prefix.pages()])
        self.free.check_integrity([request.seat for request in self.running])
        assert [self._sitting.get(r.seat) for r in self.running] == self.running, "a seat is another's"
        assert len(self._sitting) == len(self.running), "somebody sits who does not run"
        self._prefix.check_integrity()
        self._snapshots.check_integrity(self.running)


def _private_pages(request: Request) -> list[int]:
    return request.pages[len(request.nodes) :]
