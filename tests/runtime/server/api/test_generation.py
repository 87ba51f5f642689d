"""A generation without a server: chunks from scripted events, on a clock that the test sets."""

from collections.abc import Iterator
from contextlib import contextmanager

from byte_tokenizer import ASSISTANT, ByteTokenizer

from paceline_runtime.messages import TokenLogprobs, Tokens
from paceline_runtime.params import SamplingParams
from paceline_runtime.server.api.answers import Piece
from paceline_runtime.server.api.formats import ChatFormat, CompletionFormat
from paceline_runtime.server.api.generation import Generation
from paceline_runtime.server.api.jobs import Job
from paceline_runtime.server.link.engine_client import Call
from paceline_runtime.server.metrics import Metrics

JOB = Job(job_id="job", model="fake", prompts=([65],), params=SamplingParams())
TOKENIZER = ByteTokenizer()


class ScriptedClient:
    """All events are there from the start."""

    def __init__(self, events: list[Tokens]) -> None:
        self._events = events

    @contextmanager
    def call(self, submits: list) -> Iterator[Call]:
        call = Call(self, submits)
        for event in self._events:
            call.deliver("job/0", event)
        yield call


def _tokens(token_id: int, reason: str | None = None) -> Tokens:
    return Tokens(request_id="job/0", token_ids=[token_id], finish_reason=reason)


async def test_tokens_without_text_do_not_count_as_a_sign_of_life() -> None:
    """Control tokens, or text that may become a stop string: a client must hear something all the same."""
    events = [*[_tokens(ASSISTANT)] * 20, _tokens(ord("x"), "length")]
    seconds = iter(range(1000))
    generation = Generation(
        JOB, CompletionFormat(TOKENIZER), ScriptedClient(events), TOKENIZER, Metrics(), lambda: next(seconds)
    )
    texts = [chunk["choices"][0]["text"] async for chunk in generation.chunks(keepalive_s=15)]

    assert texts[-1] == "x"
    assert 1 <= texts.count("") < 20


def test_of_alternatives_with_one_text_the_likeliest_is_told() -> None:
    """Pieces of characters all read as U+FFFD; the object that OpenAI's format has for them holds each text once."""
    entry = TokenLogprobs(0xC3, -0.1, [0xC3, ord("a"), 0xE4], [-0.1, -1.0, -5.0])
    body = CompletionFormat(TOKENIZER).chunk(JOB, 0, Piece("", entry, "length"))

    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"\N{REPLACEMENT CHARACTER}": -0.1, "a": -1.0}]


class Words:
    """As SentencePiece decoders do: a word carries its space, and the very first loses it."""

    def decode(self, ids: list[int]) -> str:
        return "".join([" to", "to"][token] for token in ids).removeprefix(" ")


def test_tokens_that_differ_in_a_space_alone_are_told_apart() -> None:
    """Alone, decoders strip it: the tokens did not make the text, and of alternatives one was lost."""
    entry = TokenLogprobs(0, -0.1, [0, 1], [-0.1, -3.0])
    completion = CompletionFormat(Words()).chunk(JOB, 0, Piece("", entry, "length"))["choices"][0]["logprobs"]
    chat = ChatFormat(Words()).chunk(JOB, 0, Piece("", entry, "length"))["choices"][0]["logprobs"]["content"][0]

    assert (completion["tokens"], completion["top_logprobs"]) == ([" to"], [{" to": -0.1, "to": -3.0}])
    assert [chat["token"], *(other["token"] for other in chat["top_logprobs"])] == [" to", " to", "to"]
    assert chat["bytes"] == list(b" to")
