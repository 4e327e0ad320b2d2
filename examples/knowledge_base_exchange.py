"""Sends a REQUEST of the envelope protocol over a WebSocket, and prints it with its RESPONSE.

    python examples/knowledge_base_exchange.py [ws://localhost:9999/envelope]

The same by HTTP:

    curl -s http://localhost:9999/envelope --json @examples/knowledge_base_envelope.json

It uses no client of Parley: a message is JSON, and any library for WebSockets carries it.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from websockets.sync.client import connect

REQUEST = Path(__file__).with_name("knowledge_base_envelope.json")


def exchange(address: str) -> tuple[dict, dict]:
    """Return a REQUEST with an id and a time of its own, and the RESPONSE to it."""
    request = json.loads(REQUEST.read_text("utf-8"))
    request["messageId"] = str(uuid4())
    request["timestamp"] = datetime.now(UTC).isoformat()
    with connect(address, subprotocols=["parley.envelope.v1"]) as socket:
        socket.send(json.dumps(request))
        while True:
            answer = json.loads(socket.recv(timeout=30))
            if answer["message"].get("correlationId") == request["messageId"]:
                return request, answer


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://localhost:9999/envelope"
    try:
        for message in exchange(address):
            print(json.dumps(message, indent=2, ensure_ascii=False))
    except OSError as error:
        sys.exit(f"{address} cannot be reached ({error}): does parley serve run?")
