"""The operator's own metrics, each named once. The loop and the webhook write them, and `health` serves them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_operator.cluster.store import Store
from paceline_operator.config import OperatorConfig


class Metrics:
    """All metrics in a registry of their own."""

    def __init__(self, store: Store, config: OperatorConfig) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.reconciles = Counter(
            "paceline_operator_reconciles", "Reconciles by how they ended.", ["outcome"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "paceline_operator_reconcile_seconds", "Time of one reconcile.", registry=self.registry
        )
        self.api_calls = Counter(
            "paceline_operator_api_calls", "Requests to the API server, watches aside.", ["verb"], registry=self.registry
        )
        self.admissions = Counter(
            "paceline_operator_admissions", "Reviewed resources by decision.", ["decision"], registry=self.registry
        )
        self.queue_depth = Gauge("paceline_operator_queue_depth", "Models that wait for a reconcile.", registry=self.registry)
        self.leading = Gauge("paceline_operator_leading", "1 on the replica that reconciles.", registry=self.registry)
        self.registry.register(_ModelCollector(store, config.installation))
        if config.webhook_certificates:
            self.registry.register(_CertificateCollector(config.webhook_certificates))


class _ModelCollector(Collector):
    """Models by condition, counted when somebody asks; those of other installations are counted there."""

    def __init__(self, store: Store, installation: str) -> None:
        self._store, self._installation = store, installation

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "paceline_operator_models", "SpeculativeModels by condition.", labels=["condition", "status"]
        )
        replicas = GaugeMetricFamily(
            "paceline_operator_model_replicas", "Pods of a SpeculativeModel.", labels=["namespace", "model", "state"]
        )
        counts: dict[tuple[str, str], int] = {}
        for key, resource in self._store.models().items():
            seen = resource.get("status") or {}
            if seen.get("manager", self._installation) != self._installation:
                continue
            replicas.add_metric([*key, "existing"], seen.get("replicas", 0))
            replicas.add_metric([*key, "ready"], seen.get("readyReplicas", 0))
            for one in seen.get("conditions") or ():
                place = one["type"], one["status"]
                counts[place] = counts.get(place, 0) + 1
        for place, count in sorted(counts.items()):
            family.add_metric(place, count)
        yield from (family, replicas)


class _CertificateCollector(Collector):
    """When the webhook's certificate ends: with an expired certificate every resource is refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        try:
            certificate = x509.load_pem_x509_certificate((self._folder / "tls.crt").read_bytes())
        except (OSError, ValueError):
            return
        yield GaugeMetricFamily(
            "paceline_operator_webhook_certificate_expiry_timestamp_seconds",
            "Unix time at which the webhook's certificate ends.",
            value=certificate.not_valid_after_utc.timestamp(),
        )
