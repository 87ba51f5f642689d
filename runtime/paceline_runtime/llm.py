"""The offline interface: a model in the caller's process, prompts in, texts out.

For scripts, tests and benchmarks; the server uses the same engine in a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import build_engine
from paceline_runtime.messages import FinishReason, Rebuild, Submit, TokenLogprobs, Tokens
from paceline_runtime.params import SamplingParams
from paceline_runtime.text.bounded import BoundedEncoding, TooManyTokensError
from paceline_runtime.text.detokenizer import Decode
from paceline_runtime.text.load import load_tokenizer
from paceline_runtime.text.stops import with_token_stops
from paceline_runtime.text.stream import TextStream
from paceline_runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass
class Usage:
    """Token counts of one request; `drafted` and `accepted` count draft tokens, `steps` verify steps."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens committed per verify step."""
        return self.completion_tokens / self.steps if self.steps else 0.0


@dataclass
class Completion:
    """One answer. `step_tokens` holds how many tokens each verify step committed, in order.

    `text` is empty after a call with token ids for all prompts and without stop strings, which needs no tokenizer.
    """

    usage: Usage
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    stop_text: str | None = None


class LLM:
    """A loaded model. Keyword arguments are the fields of `EngineConfig`; `dtype` may also be a torch dtype.

    Threads may share it: their calls run one after the other.
    """

    def __init__(self, model_path: str, *, dtype: str | torch.dtype = "auto", **options: Any) -> None:
        name = str(dtype).removeprefix("torch.")
        self.config = EngineConfig(model_path=str(model_path), dtype=name, **options)
        # The engine must not refer to this object: in a cycle, the model's memory would outlive the last use of it.
        load = self._load_tokenizer = functools.cache(functools.partial(load_tokenizer, self.config.model_path))
        self.engine = build_engine(self.config, decode=lambda ids: load().decode(ids))
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, loaded on first use: token-id prompts without stop strings need none."""
        return self._load_tokenizer()

    def generate(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """Answer all prompts together. Raises ValueError, naming the prompt, before anything runs if one can never run."""
        if isinstance(prompts, str):
            raise ValueError("prompts must be a list, but is one string, whose characters are no prompts: put it into a list")
        params = [sampling_params] * len(prompts) if isinstance(sampling_params, SamplingParams) else list(sampling_params)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(params)} sampling parameters")
        params = [with_token_stops(one, self.tokenizer.special_id) if one.stop else one for one in params]
        ids = self._ids_of(prompts)
        submits = [
            Submit(request_id=f"offline-{next(self._numbers)}", prompt_ids=prompt, params=one)
            for prompt, one in zip(ids, params, strict=True)
        ]
        with self._lock:
            answers = self._run(submits)
        if any(isinstance(prompt, str) for prompt in prompts) or any(one.stop for one in params):
            for submit in submits:
                answers[submit.request_id].text = _text(self.tokenizer.decode, submit, answers[submit.request_id])
        return list(answers.values())

    def rebuild_cache(self, **sizes: int) -> None:
        """Resize the idle cache: `num_pages`, `num_state_slots`, `memory_bytes`. ValueError (nothing changed) if impossible."""
        with self._lock:
            done = self.engine.rebuild(Rebuild(**sizes))
        if done.error is not None:
            raise ValueError(done.error)

    def _ids_of(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """No text is tokenized further than the context goes, and none if one is too long by its bytes."""
        context, encodings = self.engine.info.max_model_len, dict[int, BoundedEncoding]()
        ids = {index: list(prompt) for index, prompt in enumerate(prompts) if not isinstance(prompt, str)}
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                with _refusing(index, context):
                    encodings[index] = BoundedEncoding(self.tokenizer, prompt, context - 1)
        for index, encoding in encodings.items():
            with _refusing(index, context):
                while not encoding.is_done:
                    encoding.advance()
            ids[index] = encoding.ids
        return [ids[index] for index in range(len(prompts))]

    def _run(self, submits: Sequence[Submit]) -> dict[str, Completion]:
        """What the engine gives each request, without its text."""
        answers = {submit.request_id: Completion(Usage(prompt_tokens=len(submit.prompt_ids))) for submit in submits}
        try:
            self._add(submits)
            while self.engine.has_work:
                for tokens in self.engine.step():
                    _extend(answers[tokens.request_id], tokens)
        finally:  # interrupted, it must leave nothing behind for the next call
            for request_id in answers:
                self.engine.abort(request_id)
        return answers

    def _add(self, submits: Sequence[Submit]) -> None:
        """Queue all requests; after a refusal, those before it are still to be aborted."""
        for index, submit in enumerate(submits):
            refused = self.engine.add(submit)
            if refused is not None:
                raise ValueError(f"prompt {index}: {refused.message}")


@contextlib.contextmanager
def _refusing(index: int, context: int) -> Iterator[None]:
    try:
        yield
    except TooManyTokensError as error:
        raise ValueError(f"prompt {index}: {error}, but the context holds {context}, one of them for the answer") from None


def _text(decode: Decode, submit: Submit, answer: Completion) -> str:
    """The answer's text, which continues the prompt's and ends before what ended it: a stop string or a stop token."""
    text = TextStream(decode, submit.prompt_ids, submit.params.stop)
    ended_by_token = answer.finish_reason == "stop" and answer.stop_text is None
    tokens = answer.token_ids[:-1] if ended_by_token else answer.token_ids
    return "".join([*map(text.push, tokens), text.flush()])


def _extend(answer: Completion, tokens: Tokens) -> None:
    answer.token_ids += tokens.token_ids
    answer.logprobs += tokens.logprobs or []
    answer.finish_reason = tokens.finish_reason or answer.finish_reason
    answer.stop_text = tokens.stop_text
    usage = answer.usage
    usage.completion_tokens = len(answer.token_ids)
    usage.cached_tokens = tokens.cached_tokens
    usage.drafted += tokens.drafted
    usage.accepted += tokens.accepted
    usage.steps += tokens.steps
    if tokens.steps:
        answer.step_tokens.append(len(tokens.token_ids))
