"""Does what the public conformance kits of A2A ask for, by the messageId of what it is sent.

    python examples/conformance_agent.py
    parley send "Hello"

The kits (docs/reference/conformance.md) cannot reach into an agent, so they say in the first
characters of a message's id what the task is to do. ``--mode`` chooses what the card declares:
everything, ``few`` (neither streaming nor push notifications), or ``required`` (an extension
without which nothing is served). ``--kit 0.3`` is for the kit of that version, which wants tasks
that continue. ``--card 1.0`` serves the card of 1.0 alone, since its kit takes no other.
"""

import argparse
import asyncio
import os
from uuid import uuid4

from parley import (
    Agent,
    AgentExtension,
    Caller,
    CardDetails,
    Execution,
    Message,
    Part,
    Role,
    Settings,
    Turn,
    serve,
)

REQUIRED = AgentExtension(
    uri="urn:a2a:tck:required-extension",
    description="Asks for what only a caller that knows the kit can send",
    required=True,
)
FILE = Part(raw=b"tck", filename="output.txt", media_type="text/plain")
LINK = Part(url="https://example.com/output.txt", filename="output.txt", media_type="text/plain")
STREAMING_TIMEOUT = float(os.environ.get("TCK_STREAMING_TIMEOUT", "2"))

# What a message whose id begins like this is answered with: the text of the closing message,
# or the artifact.
SAID = {"tck-complete-task": "Hello from TCK"}
MADE: dict[str, object] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file-url": LINK,
    "tck-artifact-file": FILE,
    "tck-artifact-data": {"key": "value", "count": 42},
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-file": FILE,
}


def agent_for(mode: str = "all", kit: str = "1.0") -> Agent:
    """Return the agent as one of the kits wants it."""
    agent = Agent(
        "Conformance agent",
        description="Does what conformance kits ask for",
        version="1.0.0",
        output_modes=("text/plain", "application/json"),
        extensions=[REQUIRED] if mode == "required" else [],
        # The kit of 0.3 takes an extended card for a reason to refuse those who are not known.
        card=CardDetails(
            extended_card={"description": "Does even more"} if kit == "1.0" else None,
            streaming=mode != "few",
            push_notifications=mode != "few",
        ),
        # The kit of 0.3 wants to see tasks that still work, and does not ask for them.
        execution=Execution(cancel_grace=0.5, blocking_timeout=0.2 if kit == "0.3" else 300),
    )
    agent.skill(id="conform", tags=["conformance"], examples=["Hello"])(
        goes_on if kit == "0.3" else does_as_asked
    )
    return agent


async def does_as_asked(turn: Turn) -> Message | None:
    """Does what the id of the message says; anything else is a task that completes."""
    message = turn.message
    while message.message_id.startswith("tck-input-required"):
        message = await turn.ask("What else?")
    key = message.message_id
    if key.startswith("tck-message-response") and turn.task is None:
        return says("Direct message response")
    if key.startswith("tck-reject-task"):
        turn.reject("rejected")
    if key.startswith(("tck-stream", "test-resubscribe")) and not key.startswith("tck-stream-002"):
        await turn.working()
    if key.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(2 * STREAMING_TIMEOUT)
    if key.startswith("tck-stream-artifact-chunked"):
        async with turn.stream(name="chunks") as out:
            await out.write("chunk-1 ")
            await out.write("chunk-2")
    for prefix, made in MADE.items():
        if key.startswith(prefix):
            await turn.artifact(made, name="output")
            return None
    await turn.working()
    return says(next((text for start, text in SAID.items() if key.startswith(start)), "Done"))


async def goes_on(turn: Turn) -> None:
    """Works for a moment and asks for more, for ever; one id names a task that completes."""
    await turn.working("Working on it")
    if turn.message.message_id.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(2 * STREAMING_TIMEOUT)
        return
    await asyncio.sleep(1.5)
    for _ in range(turn.number):
        await turn.ask("What else?")


def says(text: str) -> Message:
    """Return a message of the agent."""
    return Message(message_id=uuid4().hex, role=Role.AGENT, parts=(Part(text=text),))


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the conformance agent.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9999)
    parser.add_argument("--grpc-port", type=int, default=None)
    parser.add_argument("--mode", choices=("all", "few", "required"), default="all")
    parser.add_argument("--kit", choices=("1.0", "0.3"), default="1.0")
    parser.add_argument("--card", choices=("merged", "1.0"), default="merged")
    asked = parser.parse_args()
    grpc_address = ""
    if asked.kit == "0.3" and asked.grpc_port is not None:
        # That kit takes no address of gRPC without a scheme; everybody else takes none with it.
        grpc_address = f"http://{asked.host}:{asked.grpc_port}"
    serve(
        agent_for(asked.mode, asked.kit),
        host=asked.host,
        port=asked.port,
        store="memory:",
        grpc_port=asked.grpc_port,
        settings=Settings(card=asked.card, grpc_address=grpc_address),
        # The kit of 1.0 asks for the extended card without saying who it is.
        caller=lambda scope: Caller(id="kit", authenticated=True),
        drain=0.5,
        allow_private_webhooks=True,  # the kits listen on this machine
        on_listening=lambda url: print(url, flush=True),
    )


if __name__ == "__main__":
    main()
