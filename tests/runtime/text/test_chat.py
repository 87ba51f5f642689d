"""A conversation becomes ids, and which of them only open the assistant's turn is known: caches keep a state before them."""

import asyncio

import pytest
from byte_tokenizer import ASSISTANT, USER, ByteTokenizer

from paceline_runtime import messages
from paceline_runtime.server.api.bodies import ChatBody
from paceline_runtime.server.api.jobs import chat_job
from paceline_runtime.text.chat import Turn, chat_prompt


@pytest.mark.parametrize(("variables", "num_opening"), [({}, 1), ({"enable_thinking": False}, 1 + len("no thinking"))])
def test_the_opening_of_the_turn_is_what_the_template_adds(variables: dict[str, bool], num_opening: int) -> None:
    """The assistant's token, and whatever the template's switches put after it."""
    prompt = chat_prompt(ByteTokenizer(), [Turn("user", "hi")], variables)

    assert [USER, *b"hi", ASSISTANT] == prompt.ids[:4]
    assert (num_opening, 3 + num_opening) == (prompt.num_opening, len(prompt.ids))


def test_a_template_that_renders_history_otherwise_opens_nothing() -> None:
    """Where the conversation alone is not the beginning of the prompt there is no place to keep a state at."""

    class Rewriting(ByteTokenizer):
        def render_chat(self, messages, **variables):
            rendered = super().render_chat(messages, **variables)
            return rendered if variables.get("add_generation_prompt", True) else rendered.upper()

    assert 0 == chat_prompt(Rewriting(), [Turn("user", "hi")], {}).num_opening


def test_the_engine_is_told_of_the_opening() -> None:
    """Every choice's request carries it."""
    ready = messages.Ready(model_type="tiny", max_model_len=99, vocab_size=260, num_pages=9, plan="")
    body = ChatBody.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 2})
    job = asyncio.run(chat_job(body, "id", ByteTokenizer(), ready))

    assert [1, 1] == [submit.num_generation_prompt for submit in job.submits()]
