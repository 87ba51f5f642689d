"""What one HTTP request wants of the engine: prompts as token ids, parameters, number of answers; checked against the model.

The routes make a job from a parsed body and `generation` runs it; `prompts` makes the ids. A job knows the tokenizer and the
model's limits, nothing of HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_runtime import messages
from paceline_runtime.errors import Problem, RequestError
from paceline_runtime.params import SamplingParams
from paceline_runtime.server.api.bodies import MAX_CHOICES, ChatBody, CompletionBody
from paceline_runtime.server.api.parsing import sampling_params
from paceline_runtime.server.api.prompts import Prompts, Room
from paceline_runtime.text.chat import Tokenizer, Turn
from paceline_runtime.text.stops import with_token_stops

# "self" would not get as far as the template: Python takes it for the method's own.
RESERVED_VARIABLES = {"self", "messages", "tools", "add_generation_prompt", "most_chars"}


@dataclass(frozen=True)
class Job:
    """One HTTP request, ready to run. Answer `i` belongs to prompt `i // n` and is its choice `i % n`.

    The last `num_generation_prompt` tokens of a chat's prompt only open the assistant's turn. `prompt_field` is what the
    endpoint calls the prompt.
    """

    job_id: str
    model: str
    prompts: tuple[list[int], ...]
    params: SamplingParams
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    cache_salt: str = ""
    num_generation_prompt: int = 0
    prompt_field: str = "prompt"
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_answers(self) -> int:
        """Choices of the response, over all prompts."""
        return len(self.prompts) * self.n

    def prompt_of(self, answer: int) -> list[int]:
        """The prompt that an answer continues."""
        return self.prompts[answer // self.n]

    def submits(self) -> list[messages.Submit]:
        """One engine request per answer."""
        return [
            messages.Submit(
                request_id=f"{self.job_id}/{answer}",
                prompt_ids=self.prompt_of(answer),
                params=self.params,
                choice=answer % self.n,
                cache_salt=self.cache_salt,
                num_generation_prompt=self.num_generation_prompt,
            )
            for answer in range(self.num_answers)
        ]


async def chat_job(body: ChatBody, job_id: str, tokenizer: Tokenizer, ready: messages.Ready, prompts: Prompts) -> Job:
    """A chat: the conversation through the model's template is the one prompt."""
    params = with_token_stops(sampling_params(body), tokenizer.special_id)
    if reserved := RESERVED_VARIABLES & set(body.chat_template_kwargs):
        name = f"chat_template_kwargs.{min(reserved)}"
        raise RequestError([Problem(name, f"{name} is not yours to set: the server gives it its value")])
    turns = [Turn(message.role, message.text) for message in body.messages]
    room, problems = _room(params, ready, "messages"), _param_problems(body, params, ready)
    try:
        ids, num_opening = await prompts.of_chat(tokenizer, turns, body.chat_template_kwargs, room)
    except RequestError as error:
        raise RequestError([*problems, *error.problems]) from None
    except ValueError as error:
        raise RequestError([*problems, Problem("messages", f"messages: {error}")]) from None
    return _job(body, job_id, [ids], params, problems, num_opening)


async def completion_job(
    body: CompletionBody, job_id: str, tokenizer: Tokenizer, ready: messages.Ready, prompts: Prompts
) -> Job:
    """Plain completions: every prompt as it stands. Of prompts that cannot be, the first is told."""
    params = with_token_stops(sampling_params(body), tokenizer.special_id)
    if len(body.named_prompts) * body.n > MAX_CHOICES:
        raise RequestError([Problem("n", f"n times the number of prompts must be at most {MAX_CHOICES}")])
    problems = _param_problems(body, params, ready)
    placed = [(prompt, _room(params, ready, name)) for name, prompt in body.named_prompts.items()]
    try:
        if not placed:
            raise RequestError([Problem("prompt", "prompt must not be an empty list")])
        for prompt, room in placed:  # all of them, before any is tokenized
            room.check_bytes(tokenizer, prompt) if isinstance(prompt, str) else room.check(prompt)
        ids = [await prompts.of_text(tokenizer, one, room) if isinstance(one, str) else one for one, room in placed]
    except RequestError as error:
        raise RequestError([*problems, *error.problems]) from None
    return _job(body, job_id, ids, params, problems)


def _room(params: SamplingParams, ready: messages.Ready, prompt_field: str) -> Room:
    return Room(ready.max_model_len, ready.vocab_size, max(params.max_tokens or 1, 1), prompt_field)


def _param_problems(body: ChatBody | CompletionBody, params: SamplingParams, ready: messages.Ready) -> list[Problem]:
    found = [(_name_in(body, name), message) for name, message in params.problems(ready.vocab_size)]
    return [Problem(name, f"{name} {message}") for name, message in found]


def _job(
    body: ChatBody | CompletionBody,
    job_id: str,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    problems: Sequence[Problem],
    num_generation_prompt: int = 0,
) -> Job:
    if problems:
        raise RequestError(problems)
    return Job(
        job_id=job_id,
        model=body.model,
        prompts=tuple(prompts),
        params=params,
        n=body.n,
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        cache_salt=body.cache_salt,
        num_generation_prompt=num_generation_prompt,
        prompt_field="messages" if isinstance(body, ChatBody) else "prompt",
    )


def _name_in(body: ChatBody | CompletionBody, name: str) -> str:
    """What the request calls a sampling parameter."""
    if isinstance(body, ChatBody):
        if name == "logprobs":
            return "top_logprobs"
        if name == "max_tokens" and body.max_tokens is None:
            return "max_completion_tokens"
    return name
