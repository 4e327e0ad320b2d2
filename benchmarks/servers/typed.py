"""What reading and writing the protocol costs at the least: one typed decode, one encode.

Arguments: the port.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import msgspec
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin


class Part(msgspec.Struct):
    """A part of a message."""

    text: str = ""


class Message(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message."""

    message_id: str
    role: str
    parts: list[Part]
    context_id: str = ""


class Params(msgspec.Struct):
    """What SendMessage takes."""

    message: Message


class Request(msgspec.Struct):
    """A request of JSON-RPC."""

    jsonrpc: str
    id: int
    method: str
    params: Params


class Result(msgspec.Struct):
    """What SendMessage answers."""

    message: Message


class Response(msgspec.Struct):
    """An answer of JSON-RPC."""

    jsonrpc: str
    id: int
    result: Result


DECODER = msgspec.json.Decoder(Request)
ENCODER = msgspec.json.Encoder()
JSON = (b"content-type", b"application/json")


async def app(scope, receive, send):
    """Answer a message with its text."""
    body = b""
    more = True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
    request = DECODER.decode(body)
    said = request.params.message
    reply = Message(
        message_id=str(uuid.uuid4()),
        role="ROLE_AGENT",
        parts=said.parts,
        context_id=said.context_id or str(uuid.uuid4()),
    )
    data = ENCODER.encode(Response("2.0", request.id, Result(reply)))
    headers = [JSON, (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


if __name__ == "__main__":
    pin(0)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
