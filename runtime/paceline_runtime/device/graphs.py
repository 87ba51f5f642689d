"""Decode steps as CUDA graphs: draft and verify of a batch size, a depth and a kind of work, captured once and then replayed.

`engine.build` makes it for the executor on a GPU, where launching a step's kernels takes several times as long as they run.
What a graph reads and writes lies where it lay at the capture: inputs by bucket, buffers by seat, caches. It refuses to know
what is computed. A step runs as it is the first time, which loads and compiles its kernels, and is captured the second time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from paceline_runtime.device.decode import EagerDecoder, draft, no_drafts, verify
from paceline_runtime.device.inputs import Buckets, DecodeInputs
from paceline_runtime.device.parts import Parts
from paceline_runtime.device.results import Outcome
from paceline_runtime.speculative.base import Proposal
from paceline_runtime.step import Variant

_LOG = logging.getLogger(__name__)
MAX_KINDS = 128
"""So many kinds of steps are kept; beyond that, the kind that ran longest ago is forgotten, and captured anew if it returns."""

_SMALL_BATCHES = (1, 2, 3, 4, 6, 8)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def graph_buckets(max_rows: int, max_pages: int) -> Buckets:
    """Few sizes of batches, none padded by more than half or by more than 8 rows; page tables as wide as they can be.

    A wider table costs a step nothing: kernels read the pages that a request has.
    """
    sizes = [size for size in (*_SMALL_BATCHES, *range(16, max_rows + 8, 8)) if size < max_rows] + [max_rows]
    return Buckets(lambda count: next(size for size in sizes if count <= size), lambda count: max_pages)


class Captured(Protocol[T_co]):
    """Work that was recorded. `result` is what a replay leaves, at the same place each time."""

    @property
    def result(self) -> T_co:
        """Tensors that the next replay overwrites."""
        ...

    def replay(self) -> None:
        """Do the work."""
        ...


class Capture(Protocol):
    """Records a function's work without doing it. `CudaCapture`, or what a test puts in its place."""

    def __call__(self, work: Callable[[], T]) -> Captured[T]:
        """Raises RuntimeError for work that cannot be recorded."""
        ...

    def forget(self) -> None:
        """All that was recorded is gone."""
        ...


@dataclass(frozen=True)
class _Kind:
    """Steps that one pair of graphs does."""

    num_rows: int
    num_pages: int
    depth: int
    variant: Variant


@dataclass(frozen=True)
class _Step:
    """Two graphs, replayed back to back."""

    draft: Captured[Proposal] | None
    verify: Captured[Outcome]

    def replay(self) -> Outcome:
        if self.draft is not None:
            self.draft.replay()
        self.verify.replay()
        return self.verify.result


class GraphDecoder:
    """A `Decoder` that replays what it has seen before. An outcome is overwritten by the next step of its kind."""

    def __init__(self, capture: Capture, *, max_kinds: int = MAX_KINDS) -> None:
        self._capture = capture
        self._max_kinds = max_kinds
        self._eager = EagerDecoder()
        self.forget()

    def forget(self) -> None:
        """Let go of all graphs: they know the caches by their place, and others will be allocated."""
        self._capture.forget()
        self._steps: OrderedDict[_Kind, _Step | None] = OrderedDict()
        self._drafts: dict[tuple[int, int], Captured[Proposal]] = {}
        self._refused: set[_Kind] = set()
        self.is_steady = False

    @property
    def num_captured(self) -> int:
        """Kinds of steps that are replayed."""
        return sum(step is not None for step in self._steps.values())

    def __call__(self, parts: Parts, inputs: DecodeInputs, depth: int, variant: Variant) -> Outcome:
        """One step of the kind that these are."""
        variant = variant.rounded()
        kind = _Kind(len(inputs.seats), inputs.num_pages, depth, variant)
        is_known = kind in self._steps
        step = self._steps.pop(kind, None)
        self.is_steady = step is not None or kind in self._refused
        if is_known and not self.is_steady:
            step = self._try_capture(kind, parts, inputs)
        self._steps[kind] = step
        if len(self._steps) > self._max_kinds:
            self._steps.popitem(last=False)
        return step.replay() if step is not None else self._eager(parts, inputs, depth, variant)

    def _try_capture(self, kind: _Kind, parts: Parts, inputs: DecodeInputs) -> _Step | None:
        try:
            return self._captured(kind, parts, inputs)
        except RuntimeError as error:
            _LOG.warning("no CUDA graph of %s, such steps are launched kernel by kernel: %s", kind, error)
            self._refused.add(kind)
            return None

    def _captured(self, kind: _Kind, parts: Parts, inputs: DecodeInputs) -> _Step:
        if not kind.depth:
            return _Step(None, self._capture(lambda: verify(parts, inputs, no_drafts(inputs.seats), kind.variant)))
        place = kind.num_rows, kind.num_pages
        if place not in self._drafts:  # one for all depths: a draft is always as wide as configured
            self._drafts[place] = self._capture(lambda: draft(parts, inputs))
        drafts = self._drafts[place]
        return _Step(drafts, self._capture(lambda: verify(parts, inputs, drafts.result.first(kind.depth), kind.variant)))


@dataclass(frozen=True)
class _CudaGraph(Generic[T]):
    graph: torch.cuda.CUDAGraph
    result: T

    def replay(self) -> None:
        self.graph.replay()


class CudaCapture:
    """Records work on a GPU. All graphs take their memory from one pool: they are replayed one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.forget()

    def forget(self) -> None:
        """Begin another pool: torch refuses one whose graphs are all gone, which a rebuild and a first failure leave behind."""
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], T]) -> Captured[T]:
        """See `Capture`. Other threads may go on using the device."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            except BaseException:
                self.forget()
                raise
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        return _CudaGraph(graph, result)
