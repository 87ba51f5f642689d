"""The operator's settings. `main` reads them from the environment once; docs/reference.md lists every variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paceline_operator.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class OperatorConfig:
    """What the chart decides. Times are in seconds."""

    operator_image: str
    runtime_image: str
    pod_name: str
    pod_namespace: str
    watch_namespace: str = ""
    """The one namespace to watch; all of them when empty."""
    hub_endpoint: str = ""
    """Base address for hf:// sources; those are not inspected when empty."""
    s3_endpoint: str = ""
    s3_region: str = ""
    image_pull_policy: str = "IfNotPresent"
    peering_name: str = "paceline-operator"
    peering_lifetime_s: int = 20
    takeover_s: float = 60.0
    webhook_port: int = 9443
    webhook_certificates: Path | None = None
    """Folder with tls.crt and tls.key; no webhook is served when empty."""
    health_port: int = 8080
    resync_s: float = 300.0
    acceptance_period_s: float = 30.0
    admission_budget_s: float = 3.0
    num_workers: int = 8
    log_level: str = "INFO"

    @property
    def clusterwide(self) -> bool:
        return not self.watch_namespace

    @property
    def installation(self) -> str:
        """Name of this installation in `status.manager`: its peering object's, with the namespace where it has one."""
        return f"{self.watch_namespace}/{self.peering_name}" if self.watch_namespace else self.peering_name


def from_environment(environment: Mapping[str, str]) -> OperatorConfig:
    """Parse the environment. Raises ConfigError that names every wrong variable at once."""
    reader = _Reader(environment)
    config = OperatorConfig(
        operator_image=reader.text("PACELINE_OPERATOR_IMAGE"),
        runtime_image=reader.text("PACELINE_RUNTIME_IMAGE"),
        pod_name=reader.text("POD_ID"),
        pod_namespace=reader.text("POD_NAMESPACE"),
        watch_namespace=reader.text("PACELINE_WATCH_NAMESPACE", ""),
        hub_endpoint=reader.text("HF_ENDPOINT", ""),
        s3_endpoint=reader.text("AWS_ENDPOINT_URL", ""),
        s3_region=reader.text("AWS_REGION", ""),
        image_pull_policy=reader.text("PACELINE_IMAGE_PULL_POLICY", "IfNotPresent"),
        peering_name=reader.text("PACELINE_PEERING", "paceline-operator"),
        peering_lifetime_s=reader.number("PACELINE_PEERING_LIFETIME_S", 20, int),
        takeover_s=reader.number("PACELINE_TAKEOVER_S", 60.0, float),
        webhook_port=reader.number("PACELINE_WEBHOOK_PORT", 9443, int),
        webhook_certificates=reader.folder("PACELINE_WEBHOOK_CERTIFICATES"),
        health_port=reader.number("PACELINE_HEALTH_PORT", 8080, int),
        resync_s=reader.number("PACELINE_RESYNC_S", 300.0, float),
        acceptance_period_s=reader.number("PACELINE_ACCEPTANCE_PERIOD_S", 30.0, float),
        admission_budget_s=reader.number("PACELINE_ADMISSION_BUDGET_S", 3.0, float),
        num_workers=reader.number("PACELINE_WORKERS", 8, int),
        log_level=reader.choice("PACELINE_LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR")),
    )
    if reader.problems:
        raise ConfigError("; ".join(reader.problems))
    return config


class _Reader:
    """Reads variables and collects what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def text(self, name: str, default: str | None = None) -> str:
        value = self._environment.get(name, default)
        if value is None:
            self.problems.append(f"{name} must be set")
        return value or ""

    def number(self, name: str, default: T, kind: Callable[[str], T]) -> T:
        text = self._environment.get(name)
        if not text:
            return default
        try:
            value = kind(text)
        except ValueError:
            self.problems.append(f"{name} must be a number, not {text!r}")
            return default
        if not value > 0:  # type: ignore[operator]
            self.problems.append(f"{name} must be above 0, not {text}")
        return value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self._environment.get(name, default)
        if value not in choices:
            self.problems.append(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def folder(self, name: str) -> Path | None:
        text = self._environment.get(name)
        if text and not Path(text).is_dir():
            self.problems.append(f"{name} must be a folder, {text} is not")
        return Path(text) if text else None
