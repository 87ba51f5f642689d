"""The server's end of the socket, alone: what the engine sends wrongly ends the calls instead of leaving them to wait."""

import asyncio
from itertools import repeat

import msgspec
import pytest
import zmq.asyncio

from paceline_runtime import messages
from paceline_runtime.errors import EngineDiedError
from paceline_runtime.params import SamplingParams
from paceline_runtime.server.link.engine_client import EngineClient


async def _call_when_the_engine_sends(frame: bytes) -> tuple[EngineClient, messages.Failed]:
    context = zmq.asyncio.Context()
    ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    ours.bind("inproc://engine")
    theirs.connect("inproc://engine")
    client = EngineClient(ours)
    client.ready = messages.Ready(model_type="tiny", max_model_len=9, vocab_size=9, num_pages=9, plan="")
    listening = asyncio.create_task(client.listen())
    try:
        with client.call([messages.Submit(request_id="one", prompt_ids=[1], params=SamplingParams())]) as call:
            await theirs.send(frame)
            _, event = await asyncio.wait_for(call.next(), 60)
        assert isinstance(event, messages.Failed)
        return client, event
    finally:
        await asyncio.gather(listening, return_exceptions=True)
        context.destroy(linger=0)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"not msgpack",
        msgspec.msgpack.encode({"type": "Unheard"}),
        messages.encode(messages.Rebuilt(num_pages=9, plan="a plan")),
    ],
)
def test_what_cannot_be_understood_is_a_failure(frame: bytes) -> None:
    """Broken bytes, a message of another version, an answer that nobody asked for: the failure is final."""
    client, event = asyncio.run(_call_when_the_engine_sends(frame))

    assert "cannot be understood" in event.message
    with pytest.raises(EngineDiedError, match="cannot be understood"):
        client.begin(client.call([]), [])


class BackloggedSocket:
    """A thousand messages have arrived already, then the engine is gone."""

    def __init__(self, message: messages.Message) -> None:
        self._frames = repeat(messages.encode(message), 1000)
        self.num_left = 1000

    async def recv_multipart(self) -> list[bytes]:
        self.num_left -= 1
        return [next(self._frames)]

    def send(self, frame: bytes) -> None:
        """Requests and aborts go nowhere."""


async def test_a_backlog_of_messages_does_not_hold_up_the_event_loop() -> None:
    """After a stall, probes and other streams have their turn between what waited, and so have they between events."""
    socket = BackloggedSocket(messages.Tokens(request_id="one", token_ids=[1]))
    client = EngineClient(socket)
    client.ready = messages.Ready(model_type="tiny", max_model_len=9, vocab_size=9, num_pages=9, plan="")
    with client.call([messages.Submit(request_id="one", prompt_ids=[1], params=SamplingParams())]) as call:
        listening = asyncio.create_task(client.listen())
        await asyncio.sleep(0)
        num_left = socket.num_left
        await asyncio.gather(listening, return_exceptions=True)
        taken: list[int] = []

        async def take() -> None:
            for _ in range(1000):
                await call.next()
                taken.append(1)

        taking = asyncio.create_task(take())
        await asyncio.sleep(0)
        num_taken = len(taken)
        await taking

    assert num_left > 0
    assert num_taken < 1000
