"""A job run on the engine, and what comes back written whole or chunk by chunk. It takes the measurements of a request.

The routes use a `Generation` once. It knows neither sockets nor HTTP: chunks are JSON values, and whoever leaves early closes
or cancels it, whereupon the `Call` aborts what still runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

from paceline_runtime import messages
from paceline_runtime.errors import Problem, RequestError, UnavailableError
from paceline_runtime.server.api.answers import Answer, Piece, usage_of
from paceline_runtime.server.api.formats import Format, Json
from paceline_runtime.server.api.jobs import Job
from paceline_runtime.server.link.engine_client import Call, EngineClient, Event
from paceline_runtime.server.metrics import Metrics
from paceline_runtime.text.detokenizer import Decoder

logger = logging.getLogger(__name__)


class Generation:
    """One job from submission to usage."""

    def __init__(
        self,
        job: Job,
        form: Format,
        client: EngineClient,
        tokenizer: Decoder,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self._format = form
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._started_s = clock()
        self._last_s: list[float | None] = [None] * job.num_answers
        self._answers = [Answer(tokenizer, job.prompt_of(index), job.params.stop) for index in range(job.num_answers)]

    async def whole(self) -> Json:
        """Everything at once."""
        pieces: list[list[Piece]] = [[] for _ in self._answers]
        with self._client.call(self.job.submits()) as call:
            while call.is_open:
                index, event = await call.next()
                pieces[index] += self._pieces(index, event)
        self._finish()
        return self._format.whole(self.job, pieces, usage_of(self.job.prompts, self._answers))

    async def chunks(self, keepalive_s: float) -> AsyncGenerator[Json]:
        """Chunk by chunk, one per token that shows; an empty one whenever `keepalive_s` passed without any.

        Some clients do not count SSE comments as activity, hence real chunks.
        """
        with self._client.call(self.job.submits()) as call:
            opened: set[int] = set()
            shown_s = self._clock()
            while call.is_open:
                index, event = await _next(call, shown_s + keepalive_s - self._clock()) or (self._unfinished(), None)
                pieces = [Piece("")] if event is None else self._pieces(index, event)
                if index not in opened and (opening := self._format.opening(self.job, index)):
                    yield opening
                opened.add(index)
                for piece in pieces:
                    is_due = event is None or self._clock() - shown_s >= keepalive_s
                    if is_due or piece.text or piece.finish_reason or piece.logprobs:
                        yield self._format.chunk(self.job, index, piece)
                        shown_s = self._clock()
        self._finish()
        if self.job.include_usage:
            yield self._format.usage_chunk(self.job, usage_of(self.job.prompts, self._answers))

    def _pieces(self, index: int, event: Event) -> list[Piece]:
        """What an event adds to an answer; raises what the event says went wrong."""
        match event:
            case messages.Tokens():
                self._measure(index, len(event.token_ids))
                return list(self._answers[index].feed(event))
            case messages.Refused():
                param = self.job.prompt_field if event.param == "prompt" else event.param
                raise RequestError([Problem(param, event.message, event.code)])
            case messages.Failed():
                raise UnavailableError(event.message)

    def _unfinished(self) -> int:
        """An answer whose end has not been told: after a finish reason, clients expect nothing more of an answer."""
        return next(index for index, answer in enumerate(self._answers) if answer.finish_reason is None)

    def _measure(self, index: int, num_tokens: int) -> None:
        if not num_tokens:
            return
        now_s, last_s = self._clock(), self._last_s[index]
        if last_s is None:
            self._metrics.first_token(now_s - self._started_s)
        else:
            self._metrics.tokens(now_s - last_s, num_tokens)
        self._last_s[index] = now_s

    def _finish(self) -> None:
        """Count and log a complete request; each answer's first token comes from its prompt, not from a decode step."""
        usage = usage_of(self.job.prompts, self._answers)
        seconds = self._clock() - self._started_s
        self._metrics.finished(seconds, max(0, usage.num_completion - len(self._answers)), usage.num_steps)
        logger.info(
            "%s: %d prompt tokens (%d cached), %d generated in %.2f s, %d of %d drafts accepted in %d steps",
            *(self.job.job_id, usage.num_prompt, usage.num_cached, usage.num_completion, seconds),
            *(usage.num_accepted, usage.num_drafted, usage.num_steps),
        )


async def _next(call: Call, patience_s: float) -> tuple[int, Event] | None:
    """The next event, or None when it takes too long."""
    try:
        async with asyncio.timeout(patience_s):
            return await call.next()
    except TimeoutError:
        return None
