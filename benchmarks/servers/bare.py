"""What nothing at all costs: a bare ASGI app that reads a request and sends fixed JSON-RPC bytes.

Arguments: the port.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))
from processes import pin

REPLY = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "message": {
                "messageId": "01234567-89ab-cdef-0123-456789abcdef",
                "contextId": "01234567-89ab-cdef-0123-456789abcdef",
                "role": "ROLE_AGENT",
                "parts": [{"text": "hello"}],
            }
        },
    },
    separators=(",", ":"),
).encode()
CHUNK = (
    b'id: 10000\ndata: {"jsonrpc":"2.0","id":1,"result":{"artifactUpdate":{'
    b'"taskId":"01234567-89ab-cdef-0123-456789abcdef",'
    b'"contextId":"01234567-89ab-cdef-0123-456789abcdef","artifact":{'
    b'"artifactId":"01234567-89ab-cdef-0123-456789abcdef","parts":[{"text":"chunk 10000 "}]},'
    b'"append":true}}}\n\n'
)
JSON = [(b"content-type", b"application/json"), (b"content-length", str(len(REPLY)).encode())]
EVENTS = [(b"content-type", b"text/event-stream")]


async def app(scope, receive, send):
    """Answer every request with the same bytes; a stream with as many frames as it asks for."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if b"SendStreamingMessage" in body:
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        for _ in range(int(json.loads(body)["params"]["message"]["parts"][0]["text"])):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": JSON})
    await send({"type": "http.response.body", "body": REPLY})


if __name__ == "__main__":
    pin(0)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
