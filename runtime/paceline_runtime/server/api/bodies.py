"""The request bodies that the server accepts, as pydantic models: types, nesting, and which values mean nothing.

`parsing` uses the models. Ranges are the business of `SamplingParams.problems`; nothing here knows the model or the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

MAX_CHOICES = 128
MAX_SALT_CHARS = 1024

# Fields of OpenAI's API that we do not serve, with the values that ask for nothing. Anything else in them is refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
NEUTRAL_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
}


class Strict(BaseModel):
    """No coercion, no unknown fields: `"5"` is not 5, and a misspelt field is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


# What a message to the engine can carry.
Size = Annotated[int, Field(ge=1, lt=2**63)]
# One wrong id tells as much as a million of them, which take seconds to list.
Ids = Annotated[list[int], Field(fail_fast=True)]


class RebuildBody(Strict):
    """New sizes of the cache; what is left out stays."""

    num_pages: Size | None = None
    num_state_slots: Size | None = None
    memory_bytes: Size | None = None


class TextPart(Strict):
    """A piece of a message's content; images and audio are refused by their type."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The content as one string, parts joined as they stand."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(Strict):
    """`include_usage`: one more chunk before `[DONE]`, with the usage and no choices."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class CommonBody(Strict):
    """What both endpoints take. `None` means: not given."""

    model: str
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Ids | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: str = Field(default="", max_length=MAX_SALT_CHARS)  # every choice carries it to the engine

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple, whichever way they were written."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatBody(CommonBody):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)


PromptIds = Annotated[Ids, Field(min_length=1)]


class CompletionBody(CommonBody):
    """`POST /v1/completions`: a string, several, token ids, or several lists of them."""

    prompt: str | PromptIds | Annotated[list[str], Field(fail_fast=True)] | Annotated[list[PromptIds], Field(fail_fast=True)]
    logprobs: int | None = None

    @property
    def named_prompts(self) -> dict[str, str] | dict[str, list[int]]:
        """The prompts, each with its place in the body."""
        match self.prompt:
            case str():
                return {"prompt": self.prompt}
            case [int(), *_]:
                return {"prompt": cast(list[int], self.prompt)}
            case prompts:
                return {f"prompt.{at}": cast(Any, prompt) for at, prompt in enumerate(prompts)}
