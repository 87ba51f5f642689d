"""The server's end of the socket, alone: what the engine sends wrongly ends the calls instead of leaving them to wait."""

import asyncio

import msgspec
import pytest
import zmq.asyncio

from paceline_runtime import messages
from paceline_runtime.errors import EngineDiedError
from paceline_runtime.sampling import SamplingParams
from paceline_runtime.server.engine_client import EngineClient


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
