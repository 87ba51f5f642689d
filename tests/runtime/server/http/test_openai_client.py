"""The `openai` Python package against our server: what it parses is what users get."""

import openai
import pytest
from fake_engine import CONTEXT, REPLY
from live_server import MODEL

SAY = [{"role": "user", "content": "say something"}]
REPLY_TOKENS = len(REPLY.encode())


def test_a_chat_is_answered_with_text_and_usage(client: openai.OpenAI) -> None:
    """The whole reply, multi-byte characters included, and counts that add up."""
    answer = client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=REPLY_TOKENS)

    assert answer.choices[0].message.content == REPLY
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == REPLY_TOKENS
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + REPLY_TOKENS


def test_usage_tells_cached_and_accepted_tokens(client: openai.OpenAI) -> None:
    """A first token and then runs of three, of which two were drafted."""
    prompt = "cached " * 20
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=9)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 128
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 1)
    assert (details.drafted_tokens, details.decode_steps) == (6, 3)


def test_streamed_text_equals_whole_text_and_comes_token_by_token(client: openai.OpenAI) -> None:
    """One chunk per character of the reply, though the engine commits three tokens at a time."""
    chunks = list(client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=REPLY_TOKENS, stream=True))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert texts == list(REPLY)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


def test_stream_ends_with_usage_when_asked(client: openai.OpenAI) -> None:
    """One last chunk without choices; no other chunk has usage."""
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=SAY, max_tokens=5, stream=True, stream_options=options))

    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("prompt", ["one", ["one", "two"], [111, 110, 101], [[111, 110, 101], [116]]], ids=repr)
def test_completions_take_every_kind_of_prompt(client: openai.OpenAI, prompt: object) -> None:
    """Strings and token ids, one or several; one choice for each prompt, in order."""
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
    num_prompts = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1

    assert [choice.index for choice in answer.choices] == list(range(num_prompts))
    assert all(choice.text == REPLY.encode()[:3].decode(errors="replace") for choice in answer.choices)


def test_n_answers_share_one_prompt_in_usage(client: openai.OpenAI) -> None:
    """Three choices, the prompt counted once."""
    one = client.completions.create(model=MODEL, prompt="count me", max_tokens=4)
    three = client.completions.create(model=MODEL, prompt="count me", max_tokens=4, n=3)

    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string_within_a_run(client: openai.OpenAI, stream: bool) -> None:
    """The stop string lies across tokens and characters; nothing of it shows."""
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=200, stop=["世界", "nowhere"], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]

    assert "".join(choice.text for choice in choices) == "Grüße, "
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "stops", ["<user>", ["<user>"], ["never said", "<user>"], ["<assistant>", "<user>", REPLY[8:]]], ids=repr
)
def test_a_stop_that_is_a_special_token_ends_the_text(client: openai.OpenAI, stops: str | list[str], stream: bool) -> None:
    """It has no text that could be compared; alone or among others, whole or streamed, of a chat or not."""
    asked = {"model": MODEL, "max_tokens": 20, "stop": stops, "stream": stream}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "say user"}], **asked)
    completion = client.completions.create(prompt="say user", **asked)
    answers = [list(answer) if stream else [answer] for answer in (chat, completion)]
    choices = [[chunk.choices[0] for chunk in chunks if chunk.choices] for chunks in answers]
    texts = [(choice.delta if stream else choice.message).content or "" for choice in choices[0]]

    expected = bytes(REPLY.encode()[:4]).decode()
    assert expected == "".join(texts) == "".join(choice.text for choice in choices[1])
    assert ["stop", "stop"] == [chunks[-1].finish_reason for chunks in choices]
    if not stream:
        assert [5, 5] == [chunks[0].usage.completion_tokens for chunks in answers]


def test_a_special_token_that_nobody_stops_at_is_left_out_of_the_text(client: openai.OpenAI) -> None:
    """As ever."""
    answer = client.completions.create(model=MODEL, prompt="say user", max_tokens=9, stop=["<assistant>"])

    reply = REPLY.encode()
    assert (reply[:4] + reply[5:9]).decode(errors="replace") == answer.choices[0].text
    assert "length" == answer.choices[0].finish_reason


def test_a_stop_token_has_no_text_but_counts(client: openai.OpenAI) -> None:
    """By id, and by the model's own end token."""
    comma = client.completions.create(model=MODEL, prompt="x", max_tokens=50, extra_body={"stop_token_ids": [ord(",")]})
    eos = client.completions.create(model=MODEL, prompt="say eos", max_tokens=50)

    assert (comma.choices[0].text, comma.choices[0].finish_reason) == ("Grüße", "stop")
    assert comma.usage.completion_tokens == len("Grüße,".encode())
    assert (eos.choices[0].text, eos.choices[0].finish_reason) == ("Grü", "stop")


def test_chat_logprobs_have_one_entry_per_token(client: openai.OpenAI) -> None:
    """Streamed or not, with the alternatives that were asked for."""
    asked = {"model": MODEL, "messages": SAY, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    streamed = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content]

    assert len(whole) == 4
    assert whole == streamed
    assert [len(entry.top_logprobs) for entry in whole] == [2] * 4
    assert (whole[0].token, whole[0].bytes, whole[0].logprob) == ("G", [ord("G")], -0.5)


def test_completion_logprobs_are_parallel_lists(client: openai.OpenAI) -> None:
    """The older endpoint's shape."""
    logprobs = client.completions.create(model=MODEL, prompt="x", max_tokens=2, logprobs=1).choices[0].logprobs

    assert logprobs.tokens == ["G", "r"]
    assert logprobs.token_logprobs == [-0.5, -0.5]
    assert logprobs.top_logprobs == [{"G": -0.5}, {"r": -0.5}]
    assert logprobs.text_offset == [0, 1]


def test_text_offsets_are_where_tokens_begin_in_the_answer(client: openai.OpenAI) -> None:
    """Streamed or not, with text held back for a stop string; both bytes of a character begin where it does."""
    asked = {"model": MODEL, "prompt": "x", "max_tokens": 6, "logprobs": 0, "stop": ["rüz"]}
    whole = client.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]

    assert whole.text == "Grüße"[:4]
    assert whole.logprobs.text_offset == [0, 1, 2, 2, 3, 3]
    assert [offset for choice in chunks if choice.logprobs for offset in choice.logprobs.text_offset] == [0, 1, 2, 2, 3, 3]


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    """With the context length, which clients use to size prompts."""
    (model,) = client.models.list().data

    assert (model.id, model.max_model_len) == (MODEL, CONTEXT)
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_without_max_tokens_a_chat_may_fill_the_context(client: openai.OpenAI) -> None:
    """The prompt and the answer together are exactly as long as the context."""
    usage = client.chat.completions.create(model=MODEL, messages=SAY).usage

    assert usage.total_tokens == CONTEXT


def test_template_variables_reach_the_template(client: openai.OpenAI) -> None:
    """The way to switch thinking off, among others."""
    asked = {"model": MODEL, "messages": SAY, "max_tokens": 1}
    plain = client.chat.completions.create(**asked)
    quiet = client.chat.completions.create(**asked, extra_body={"chat_template_kwargs": {"enable_thinking": False}})

    assert quiet.usage.prompt_tokens == plain.usage.prompt_tokens + len("no thinking")
