"""What the routes share: the engine's client, the tokenizer once it is loaded, metrics, and whether the server is draining.

`lifecycle` makes it and hands it to `app`. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline_runtime import messages
from paceline_runtime.config import ServeConfig
from paceline_runtime.errors import EngineDiedError, UnavailableError
from paceline_runtime.server.api.prompts import Prompts
from paceline_runtime.server.link.engine_client import EngineClient
from paceline_runtime.server.metrics import EngineCollector, Metrics
from paceline_runtime.text.chat import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """What exists only once loading is over."""

    tokenizer: Tokenizer
    ready: messages.Ready


class Service:
    """The state of one server."""

    def __init__(self, config: ServeConfig, client: EngineClient) -> None:
        self.config = config
        self.client = client
        self.metrics = Metrics()
        self.metrics.registry.register(EngineCollector(lambda: client.stats))
        self.tokenizer: Tokenizer | None = None
        self.prompts = Prompts()
        self.draining = False
        self.started_s = int(time.time())
        self._num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def loaded(self) -> Loaded:
        """The loaded model, or `UnavailableError` saying why there is none to use now."""
        if self.client.failure is not None:
            raise EngineDiedError(f"the engine has failed: {self.client.failure}")
        if self.draining:
            raise UnavailableError("the server is shutting down and takes no new requests", retry_after_s=1)
        if self.client.ready is None or self.tokenizer is None:
            raise UnavailableError(f"the model is loading: {self.phase}, {self.fraction:.0%}")
        return Loaded(self.tokenizer, self.client.ready)

    @property
    def phase(self) -> str:
        """What loading is doing, in words."""
        return "tokenizer" if self.client.ready is not None else self.client.progress.phase

    @property
    def fraction(self) -> float:
        """How far loading is, 1 when all is ready."""
        if self.client.ready is None:
            return self.client.progress.fraction
        return 1.0 if self.tokenizer is not None else 0.99

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests are welcome, and what `/readyz` says."""
        detail = {"phase": self.phase, "fraction": round(self.fraction, 4)}
        if self.client.failure is not None:
            return False, {"status": "failed", "error": self.client.failure}
        if self.draining:
            return False, {"status": "draining"}
        if self.client.ready is None or self.tokenizer is None:
            return False, {"status": "loading", **detail}
        return True, {"status": "ready", "model": self.config.model_name, "max_model_len": self.client.ready.max_model_len}

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Around each request that a drain must wait for."""
        self._num_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_in_flight -= 1
            if not self._num_in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Until no request is in flight."""
        await self._idle.wait()
