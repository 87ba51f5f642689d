"""Starts the operator: environment -> settings -> kopf. `python -m paceline_operator` calls `main`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

import kopf

from paceline_operator.cluster.kinds import WATCHED
from paceline_operator.cluster.resync import SELECTOR
from paceline_operator.config import OperatorConfig, from_environment
from paceline_operator.errors import ConfigError
from paceline_operator.loop.handlers import register
from paceline_operator.loop.operator import Operator
from paceline_operator.names import ANNOTATION_PREFIX

# Below the pod's grace period of 30 s.
EXIT_TIMEOUT_S = 20.0
CERTIFICATE_CHECK_S = 5.0


def main() -> int:
    """Run until SIGTERM. Returns the exit code: 2 for a wrong environment."""
    try:
        config = from_environment(os.environ)
    except ConfigError as error:
        print(f"paceline-operator: {error}", file=sys.stderr)
        return 2
    configure_logging(config.log_level)
    # The newest replica works, the others wait: no two can start in the same microsecond under one name.
    asyncio.run(run(config, priority=time.time_ns() // 1000))
    return 0


async def run(config: OperatorConfig, priority: int, registry: kopf.OperatorRegistry | None = None) -> None:
    """Run one operator until it is cancelled or told to stop."""
    registry = registry or kopf.OperatorRegistry()
    register(registry, with_webhook=config.webhook_certificates is not None)
    await kopf.operator(
        registry=registry,
        settings=settings_for(config),
        memo=kopf.Memo(operator=Operator(config, priority)),
        clusterwide=config.clusterwide,
        namespaces=[] if config.clusterwide else [config.watch_namespace],
        identity=config.pod_name,
    )


def settings_for(config: OperatorConfig) -> kopf.OperatorSettings:
    """kopf's settings: kopf keeps nothing on objects, needs no rights on CRDs, namespaces or events, and has timeouts."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{ANNOTATION_PREFIX}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=ANNOTATION_PREFIX)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=ANNOTATION_PREFIX)
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    # An integer: the API server parses it as one.
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660.0
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = 500
    for kind in WATCHED:
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = SELECTOR
    settings.queueing.worker_limit = 20
    settings.queueing.idle_timeout = 1.0
    settings.process.ultimate_exiting_timeout = EXIT_TIMEOUT_S
    # kopf's own peering compares clocks of different machines: `cluster.leadership` does without.
    settings.peering.standalone = True
    if config.webhook_certificates:
        settings.admission.server = kopf.WebhookServer(
            addr="",
            port=config.webhook_port,
            certfile=config.webhook_certificates / "tls.crt",
            pkeyfile=config.webhook_certificates / "tls.key",
            file_check_interval=CERTIFICATE_CHECK_S,
        )
    return settings


def configure_logging(level: str) -> None:
    """Log JSON lines; of kopf's own lines, only warnings and errors."""
    kopf.configure(log_format=kopf.LogFormat.JSON)
    logging.getLogger().setLevel(level)
    # The webhook's access log has a line for each probe, every 2 s.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(max(logging.WARNING, logging.getLevelName(level)))
