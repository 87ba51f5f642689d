"""A conversation becomes ids, and which of them only open the assistant's turn is known: caches keep a state before them."""

import asyncio

import pytest
from byte_tokenizer import ASSISTANT, USER, ByteTokenizer

from paceline_runtime import messages
from paceline_runtime.server.api.bodies import ChatBody
from paceline_runtime.server.api.jobs import chat_job
from paceline_runtime.server.api.prompts import Prompts, Room
from paceline_runtime.text.chat import Turn, chat_text
from paceline_runtime.text.chat_template import ChatTemplate

ROOM = Room(max_model_len=99, vocab_size=260, num_answer=1, field="messages")


@pytest.mark.parametrize(("variables", "num_opening"), [({}, 1), ({"enable_thinking": False}, 1 + len("no thinking"))])
def test_the_opening_of_the_turn_is_what_the_template_adds(variables: dict[str, bool], num_opening: int) -> None:
    """The assistant's token, and whatever the template's switches put after it."""
    making = Prompts(1).of_chat(ByteTokenizer(), [Turn("user", "hi")], variables, ROOM)
    ids, num_told = asyncio.run(making)

    assert [USER, *b"hi", ASSISTANT] == ids[:4]
    assert (num_opening, 3 + num_opening) == (num_told, len(ids))


def test_a_template_that_renders_history_otherwise_opens_nothing() -> None:
    """Where the conversation alone is not the beginning of the prompt there is no place to keep a state at."""

    class Rewriting(ByteTokenizer):
        def render_chat(self, messages, **variables):
            rendered = super().render_chat(messages, **variables)
            return rendered if variables.get("add_generation_prompt", True) else rendered.upper()

    making = Prompts(1).of_chat(Rewriting(), [Turn("user", "hi")], {}, ROOM)

    assert ([USER, *b"hi", ASSISTANT], 0) == asyncio.run(making)


def test_the_engine_is_told_of_the_opening() -> None:
    """Every choice's request carries it."""
    ready = messages.Ready(model_type="tiny", max_model_len=99, vocab_size=260, num_pages=9, plan="")
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2})
    job = asyncio.run(chat_job(body, "id", ByteTokenizer(), ready, Prompts(1)))

    assert [1, 1] == [submit.num_generation_prompt for submit in job.submits()]


def test_of_a_conversation_that_is_too_long_no_more_is_rendered_than_shows_it() -> None:
    """A template may be slow, and what it makes may be many times what was sent."""
    counted = []
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ count(1) }}{% endfor %}", {})
    turns = [{"role": "user", "content": "ten chars."}] * 1000
    text = template.render(turns, add_generation_prompt=True, most_chars=100, count=lambda one: counted.append(one) or "")

    assert "ten chars." * 11 == text
    assert len(counted) < 15
    assert turns[0]["content"] * 1000 == template.render(turns, add_generation_prompt=True, count=lambda one: "")


@pytest.mark.parametrize("most_chars", [None, 2 * len("<user>hi") + len("<assistant>")])
def test_a_conversation_of_just_so_many_characters_is_all_there(most_chars: int | None) -> None:
    """And one of more is not taken for a whole one: it has no opening."""
    turns = [Turn("user", "hi")] * 2

    whole = chat_text(ByteTokenizer(), turns, {}, most_chars)

    assert ("<user>hi" * 2 + "<assistant>", "<assistant>") == (whole.text, whole.opening)
    if most_chars is not None:
        assert chat_text(ByteTokenizer(), turns, {}, most_chars - 1).opening is None
