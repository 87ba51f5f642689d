"""What `/metrics` shows: counters and histograms that the server observes, and the engine's latest `Stats`.

One `Metrics` per server with its own registry, so that two servers in one process (tests) do not share. Names and labels
are documented in docs/reference.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from paceline_runtime.messages import Stats

Outcome = Literal["completed", "disconnected", "refused", "unavailable", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("completed", "disconnected", "refused", "unavailable", "failed")

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """The server's own measurements. Everything about the engine comes from its `Stats`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("paceline_requests", "HTTP requests by how they ended", ["outcome"], registry=self.registry)
        self._first_token = self._histogram(
            "paceline_time_to_first_token_seconds", "From request to its first token", TTFT_BUCKETS_S
        )
        self._inter_token = self._histogram(
            "paceline_inter_token_seconds", "Between tokens of one answer", INTER_TOKEN_BUCKETS_S
        )
        self._request = self._histogram("paceline_request_seconds", "From request to its last token", REQUEST_BUCKETS_S)
        self.loading = Gauge("paceline_loading_fraction", "How far loading is, 1 when ready", registry=self.registry)
        self._tokens_per_step = Gauge(
            "paceline_spec_tokens_per_step", "Tokens per decode step of the last finished request", registry=self.registry
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)

    def ended(self, outcome: Outcome) -> None:
        """Count an HTTP request that asked for generation."""
        self._requests.labels(outcome).inc()

    def first_token(self, seconds: float) -> None:
        """A request's first token is here."""
        self._first_token.observe(seconds)

    def tokens(self, seconds: float, num_tokens: int) -> None:
        """A later step brought tokens: each counts an equal part of the time since the step before."""
        for _ in range(num_tokens):
            self._inter_token.observe(seconds / num_tokens)

    def finished(self, seconds: float, num_tokens: int, num_steps: int) -> None:
        """A request is complete; the first token of an answer comes from its prompt, not from a decode step."""
        self._request.observe(seconds)
        if num_steps:
            self._tokens_per_step.set(num_tokens / num_steps)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, text: str, buckets_s: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets_s, registry=self.registry)


class EngineCollector(Collector):
    """The engine's last snapshot as metrics; nothing before there is one."""

    def __init__(self, latest: Callable[[], Stats | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape; the registry asks for them."""
        stats = self._latest()
        if stats is None:
            return
        yield from _gauges(stats)
        yield from _counters(stats)
        yield _by_position(
            "paceline_spec_drafted_tokens", "Draft tokens proposed, by position in the draft", stats.drafted_by_position
        )
        yield _by_position(
            "paceline_spec_accepted_tokens", "Draft tokens accepted, by position in the draft", stats.accepted_by_position
        )


def _gauges(stats: Stats) -> Iterator[Metric]:
    yield GaugeMetricFamily("paceline_requests_running", "Requests being decoded or prefilled", stats.num_running)
    yield GaugeMetricFamily("paceline_requests_waiting", "Requests in the queue", stats.num_waiting)
    pages = GaugeMetricFamily("paceline_kv_pages", "Pages of 64 tokens by state", labels=["state"])
    states = {"free": stats.num_free_pages, "cached": stats.num_cached_pages}
    for state, num_pages in {**states, "used": stats.num_pages - sum(states.values())}.items():
        pages.add_metric([state], num_pages)
    yield pages


def _counters(stats: Stats) -> Iterator[Metric]:
    for name, text, value in (
        ("paceline_prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens),
        ("paceline_generated_tokens", "Tokens committed", stats.generated_tokens),
        ("paceline_spec_steps", "Decode steps, one per request and step", stats.steps),
        ("paceline_prefix_query_tokens", "Prompt tokens looked up in the prefix cache", stats.prefix_query_tokens),
        ("paceline_prefix_hit_tokens", "Prompt tokens found in the prefix cache", stats.prefix_hit_tokens),
        ("paceline_preemptions", "Requests preempted for lack of pages", stats.preemptions),
        ("paceline_evicted_pages", "Cached pages given up for others", stats.evicted_pages),
    ):
        yield CounterMetricFamily(name, text, value)


def _by_position(name: str, text: str, counts: list[int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["position"])
    for position, count in enumerate(counts, start=1):
        family.add_metric([str(position)], count)
    return family
