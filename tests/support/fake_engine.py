"""A scripted engine for server tests: no model, no torch, the interface of `engine.process.Engine`.

It answers each request with `REPLY` as bytes, over and over: one first token, then verify steps of up to three. It holds one
page per request, so that a leak shows. Words in the prompt make it behave in ways that a test wants to see:

    hang            never answers                   crash, die      raises, or ends the process, after a few tokens
    linger          falls silent after 10 tokens    say eos         ends with the eos token after 4 tokens
    say user        has a control token, no end, as its fifth and goes on
    gate:PATH       stops after 4 tokens until      cached          claims to have found whole pages in the prefix cache
                    someone writes to the FIFO      too big for the cache       is refused by the engine
"""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from byte_tokenizer import EOS, USER, VOCAB_SIZE, ByteTokenizer

from paceline_runtime.config import EngineConfig
from paceline_runtime.messages import FinishReason, Rebuild, Rebuilt, Refused, Stats, Submit, TokenLogprobs, Tokens
from paceline_runtime.text.stream import TextStream

REPLY = "Grüße, 世界! 🙂 ok. "
NUM_PAGES = 256
CONTEXT = 4096
RUN = 3

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True)
class FakeInfo:
    """As `engine.engine.EngineInfo`."""

    model_type: str = "fake"
    vocab_size: int = VOCAB_SIZE
    max_model_len: int = CONTEXT
    plan: str = "plan: one page per request"


@dataclass
class Script:
    """One running request."""

    submit: Submit
    reply: bytes
    text: TextStream
    num_tokens: int = 0
    num_steps: int = 0

    @property
    def prompt(self) -> str:
        return ByteTokenizer().decode(self.submit.prompt_ids)

    @property
    def is_silent(self) -> bool:
        return "hang" in self.prompt or ("linger" in self.prompt and self.num_tokens >= 10)


@dataclass
class FakeEngine:
    """See the module."""

    info: FakeInfo = field(default_factory=FakeInfo)
    running: dict[str, Script] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    num_added: int = 0
    num_rebuilds: int = 0
    num_prompt_tokens: int = 0
    num_generated: int = 0
    num_steps: int = 0
    accepted: list[int] = field(default_factory=lambda: [0] * (RUN - 1))
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def has_work(self) -> bool:
        return any(not script.is_silent for script in self.running.values())

    def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Called by a test in another thread: wait for the engine to come to a state."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), f"running: {list(self.running)}, aborted: {len(self.aborted)}"

    def add(self, submit: Submit) -> Refused | None:
        script = Script(submit, REPLY.encode(), TextStream(ByteTokenizer().decode, submit.prompt_ids, submit.params.stop))
        if "too big for the cache" in script.prompt:
            text = "the request needs more pages than there are"
            return Refused(request_id=submit.request_id, code="context_length_exceeded", message=text, param="prompt")
        with self.changed:
            self.num_added += 1
            self.num_prompt_tokens += len(submit.prompt_ids)
            self.running[submit.request_id] = script
            self.changed.notify_all()
        return None

    def abort(self, request_id: str) -> None:
        with self.changed:
            if self.running.pop(request_id, None):
                self.aborted.append(request_id)
            self.changed.notify_all()

    def rebuild(self, sizes: Rebuild) -> Rebuilt:
        """Takes any number of pages up to a thousand, while nothing runs."""
        self.num_rebuilds += 1
        too_many = sizes.num_pages is not None and sizes.num_pages > 1000
        error = "too many pages" if too_many else "requests run" if self.running else None
        param = "num_pages" if too_many else None
        num_pages, is_busy = sizes.num_pages or NUM_PAGES, bool(self.running)
        return Rebuilt(num_pages=num_pages, plan="a plan", error=error, param=param, is_busy=is_busy)

    def step(self) -> list[Tokens]:
        """Every request that is not silent moves on."""
        for script in self.running.values():
            if script.num_tokens == 4:
                _misbehave(script.prompt)
        outputs = [self._advance(script) for script in list(self.running.values()) if not script.is_silent]
        with self.changed:
            for output in outputs:
                if output.finish_reason:
                    del self.running[output.request_id]
            self.changed.notify_all()
        return outputs

    def _advance(self, script: Script) -> Tokens:
        is_verify = script.num_tokens > 0
        tokens: list[int] = []
        reason: FinishReason | None = None
        while reason is None and len(tokens) < (RUN if is_verify else 1):
            token = self._token(script)
            tokens.append(token)
            script.num_tokens += 1
            reason = self._end(script, token)
        script.num_steps += is_verify
        self._count(tokens, is_verify=is_verify)
        return Tokens(
            request_id=script.submit.request_id,
            token_ids=tokens,
            finish_reason=reason,
            stop_text=script.text.stop,
            cached_tokens=len(script.submit.prompt_ids) // 64 * 64 if "cached" in script.prompt else 0,
            drafted=RUN - 1 if is_verify else 0,
            accepted=len(tokens) - 1 if is_verify else 0,
            steps=int(is_verify),
            logprobs=self._logprobs(script, tokens),
        )

    def _token(self, script: Script) -> int:
        if "say eos" in script.prompt and script.num_tokens == 4 and not script.submit.params.ignore_eos:
            return EOS
        if "say user" in script.prompt and script.num_tokens == 4:
            return USER
        return script.reply[script.num_tokens % len(script.reply)]

    def _end(self, script: Script, token: int) -> FinishReason | None:
        params = script.submit.params
        script.text.push(token)
        limit = params.max_tokens or self.info.max_model_len - len(script.submit.prompt_ids)
        if token == EOS or token in params.stop_token_ids or script.text.stop:
            return "stop"
        return "length" if script.num_tokens >= limit else None

    def _count(self, tokens: list[int], *, is_verify: bool) -> None:
        self.num_generated += len(tokens)
        if is_verify:
            self.num_steps += 1
            for position in range(len(tokens) - 1):
                self.accepted[position] += 1

    def _logprobs(self, script: Script, tokens: list[int]) -> list[TokenLogprobs] | None:
        wanted = script.submit.params.logprobs
        if wanted is None:
            return None
        return [
            TokenLogprobs(token, -0.5, [token, *range(65, 64 + wanted)][:wanted], [-0.5 - rank for rank in range(wanted)])
            for token in tokens
        ]

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self.running),
            num_waiting=0,
            num_free_pages=NUM_PAGES - len(self.running),
            num_cached_pages=0,
            num_pages=NUM_PAGES,
            preemptions=0,
            prefix_query_tokens=self.num_prompt_tokens,
            prefix_hit_tokens=0,
            evicted_pages=0,
            prompt_tokens=self.num_prompt_tokens,
            generated_tokens=self.num_generated,
            steps=self.num_steps,
            drafted_by_position=[self.num_steps] * (RUN - 1),
            accepted_by_position=list(self.accepted),
        )


def _misbehave(prompt: str) -> None:
    if gate := re.search(r"gate:(\S+)", prompt):
        with open(gate[1]):  # opening a FIFO waits for a writer
            pass
    if "crash" in prompt:
        raise RuntimeError("scripted crash")
    if "die" in prompt:
        os._exit(7)


def build_fake_engine(config: EngineConfig, on_progress: OnProgress) -> FakeEngine:
    """Loads at once."""
    on_progress("weights", 0.5)
    return FakeEngine()


def build_slow_engine(config: EngineConfig, on_progress: OnProgress) -> FakeEngine:
    """Reports half of the way, then waits until someone writes to the FIFO at `model_path`."""
    on_progress("weights", 0.5)
    with open(config.model_path):
        return FakeEngine()


def build_broken_engine(config: EngineConfig, on_progress: OnProgress) -> FakeEngine:
    """Cannot be loaded."""
    raise ValueError(f"{config.model_path}: tensor blk.0.attn_q.weight is missing")
