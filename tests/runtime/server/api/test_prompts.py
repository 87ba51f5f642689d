"""Texts become ids on a few threads, in turn, for as long as somebody waits for them."""

import asyncio
import threading

import pytest
from byte_tokenizer import ByteTokenizer

from paceline_runtime.errors import RequestError
from paceline_runtime.server.api.prompts import MOST_THREADS, Prompts, Room
from paceline_runtime.text.bounded import SHORT_CHARS
from paceline_runtime.text.chat import Turn

ROOM = Room(max_model_len=100_001, vocab_size=260, num_answer=1, field="prompt")


class Watched(ByteTokenizer):
    """Notes whose text is worked on, in order, and how many at a time. A text of "gate" waits for the gate."""

    def __init__(self):
        super().__init__()
        self.order, self.threads, self.num_at_work, self.most_at_work = [], set(), 0, 0
        self.gate, self.changed = threading.Event(), threading.Condition()

    def gradually(self, text, add_special_tokens=True):
        encoding = super().gradually(text, add_special_tokens)
        advance = encoding.advance

        def watched():
            with self.changed:
                self.order.append(text[0])
                self.threads.add(threading.current_thread().name)
                self.num_at_work += 1
                self.most_at_work = max(self.most_at_work, self.num_at_work)
                self.changed.notify_all()
            if "gate" in text:
                assert self.gate.wait(60)
            advance()
            with self.changed:
                self.num_at_work -= 1

        encoding.advance = watched
        return encoding

    async def until(self, condition):
        """Wait without holding up the loop."""

        def wait():
            with self.changed:
                assert self.changed.wait_for(condition, 60)

        await asyncio.to_thread(wait)


@pytest.fixture
def tokenizer():
    """One that ends whatever a failed test left at the gate."""
    watched = Watched()
    yield watched
    watched.gate.set()


async def test_a_few_texts_at_a_time_are_tokenized_however_many_there_are(tokenizer):
    """And no more threads than that are started for them."""
    prompts = Prompts(MOST_THREADS)
    tasks = [asyncio.create_task(prompts.of_text(tokenizer, f"{at % 10} gate", ROOM)) for at in range(50)]
    await tokenizer.until(lambda: tokenizer.num_at_work == MOST_THREADS)
    tokenizer.gate.set()

    assert [list(f"{at % 10} gate".encode()) for at in range(50)] == await asyncio.gather(*tasks)
    assert MOST_THREADS == tokenizer.most_at_work
    assert len(tokenizer.threads) <= MOST_THREADS


@pytest.mark.parametrize(("num_cores", "num_threads"), [(1, 1), (2, 1), (6, 3), (128, MOST_THREADS), (None, 1)])
def test_the_server_takes_half_of_the_cores_and_no_more_than_a_few(monkeypatch, num_cores, num_threads):
    """The engine and the event loop need the others."""
    monkeypatch.setattr("os.cpu_count", lambda: num_cores)

    assert num_threads == Prompts()._threads._max_workers <= 4


async def test_a_short_text_does_not_wait_for_the_end_of_a_long_one(tokenizer):
    """Each has its turn after a window of another."""
    prompts = Prompts(1)
    first = asyncio.create_task(prompts.of_text(tokenizer, "gate", ROOM))
    await tokenizer.until(lambda: tokenizer.num_at_work == 1)
    long = asyncio.create_task(prompts.of_text(tokenizer, "l" * 50_000, ROOM))
    other = asyncio.create_task(prompts.of_text(tokenizer, "o" * 50_000, ROOM))
    short = asyncio.create_task(prompts.of_text(tokenizer, "short", ROOM))
    await asyncio.sleep(0)  # all three are in the queue
    tokenizer.gate.set()

    texts = [b"gate", b"l" * 50_000, b"o" * 50_000, b"short"]
    assert list(map(list, texts)) == await asyncio.gather(first, long, other, short)
    assert ["g", "l", "o", "s"] == tokenizer.order[:4]
    assert ["l", "o"] * 49 == tokenizer.order[4:]


async def test_nobody_waits_for_a_text_whose_client_left(tokenizer):
    """In the queue it is passed over, in the middle of its windows it goes no further."""
    prompts = Prompts(1)
    left = asyncio.create_task(prompts.of_text(tokenizer, "e endless", ROOM))
    await tokenizer.until(lambda: tokenizer.order.count("e") > 3)
    at_work = asyncio.create_task(prompts.of_text(tokenizer, "gate", ROOM))
    await tokenizer.until(lambda: "g" in tokenizer.order)
    queued = asyncio.create_task(prompts.of_text(tokenizer, "queued", ROOM))
    await asyncio.sleep(0)
    for task in (left, queued, at_work):
        task.cancel()
    gone = await asyncio.gather(left, queued, at_work, return_exceptions=True)
    num_turns = len(tokenizer.order)
    tokenizer.gate.set()

    assert [asyncio.CancelledError] * 3 == [type(error) for error in gone]
    assert [*b"next"] == await prompts.of_text(tokenizer, "next", ROOM)
    assert ["n"] == tokenizer.order[num_turns:]


async def test_tokenizing_ends_where_the_context_does():
    """The rest of an endless text is never asked for."""
    tokenizer = ByteTokenizer()
    with pytest.raises(RequestError, match=r"the context holds 5000 tokens, but at least 5000 in the prompt and 1 for"):
        await Prompts(1).of_text(tokenizer, "x" * 9000, Room(5000, 260, 1, "prompt"))

    assert 5 == tokenizer.num_advances


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "prompt must come to at least one token"),
        ([1] * 100, "100 in the prompt and 1 for the answer make 101"),
        ([1, -1], "token id -1 is outside the vocabulary of 260"),
        ([1, 260], "token id 260 is outside"),
    ],
)
def test_ids_are_as_many_and_as_large_as_the_model_takes(ids, message):
    """Whoever made them."""
    room = Room(100, 260, 1, "prompt")
    room.check([0, 259] * 49)
    with pytest.raises(RequestError, match=message):
        room.check(ids)


@pytest.mark.parametrize("num_answer", [1, 90_000, 10**9])
async def test_a_conversation_that_is_too_long_by_its_bytes_is_rendered_once_and_not_tokenized(num_answer):
    """Its beginning shows it, and the answer that was asked for counts."""

    class Rendering(ByteTokenizer):
        lengths: list[int | None] = []  # noqa: RUF012

        def render_chat(self, messages, most_chars=None, **variables):
            self.lengths.append(most_chars)
            return super().render_chat(messages, **variables)[: most_chars and most_chars + 1]

    tokenizer, room = Rendering(), Room(100_001, 260, num_answer, "messages")
    tokenizer.lengths.clear()
    with pytest.raises(RequestError, match="at least"):
        await Prompts(1).of_chat(tokenizer, [Turn("user", "x" * 2_000_000)], {}, room)

    assert [max(room.most * tokenizer.longest_token_bytes, SHORT_CHARS)] == tokenizer.lengths
    assert 0 == tokenizer.num_advances


async def test_characters_that_have_no_token_take_no_room():
    """A conversation full of them is rendered once more, whole, before it is judged."""

    class Silent(ByteTokenizer):
        def encode(self, text, add_special_tokens=True):
            return super().encode(text.replace("\x04", ""), add_special_tokens)

        def fewest_tokens(self, text):
            return super().fewest_tokens(text.replace("\x04", ""))

        def render_chat(self, messages, most_chars=None, **variables):
            return super().render_chat(messages, **variables)[: most_chars and most_chars + 1]

    turns = [Turn("user", "\x04" * 2_000_000 + "hi")]
    ids, num_opening = await Prompts(1).of_chat(Silent(), turns, {}, Room(1000, 260, 1, "messages"))

    assert ([257, *b"hi", 258], 1) == (ids, num_opening)
