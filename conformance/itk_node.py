"""A Parley agent as a node of the integration kit: it does what instructions say, and passes on.

Run by ``conformance.itk`` with the kit's ``pyproto`` on the path. An instruction says what to
answer, whom to call (over which binding, streaming or not, with a webhook, or by subscribing
again), or what to do one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
from collections.abc import Iterable
from contextlib import aclosing
from typing import cast
from uuid import uuid4

from google.protobuf.message import DecodeError
from msgspec.structs import replace
from pyproto.instruction_pb2 import CallAgent, Instruction

import parley
from parley import Agent, Message, Part, Role, Task, TaskStatusUpdateEvent, Turn
from parley.client.calls.service import RemoteService

BINDINGS = {"JSONRPC": "JSONRPC", "GRPC": "GRPC", "HTTP_JSON": "HTTP+JSON", "REST": "HTTP+JSON"}
FINISHED = "task-finished"
HOLD = 2.0
"""Seconds between signs of life of a task that is held."""

agent = Agent("Parley in the ring", description="Does what instructions say", version="1.0.0")


@agent.skill(tags=["conformance"], replies="task")
async def follow(turn: Turn) -> Message:
    """Does what an instruction says."""
    await turn.working()
    instruction = instruction_in(turn.message)
    if instruction is None:
        turn.fail("there is no instruction in the message")
    said = "\n".join(await done(instruction))
    if is_held(instruction):
        await turn.working(f"{said}\n{FINISHED}")
        while True:
            await asyncio.sleep(HOLD)
            await turn.working()
    return Message(message_id=uuid4().hex, role=Role.AGENT, parts=(Part(text=said),))


def instruction_in(message: Message) -> Instruction | None:
    """Return the instruction that a message carries, as bytes or as base64 text."""
    for part in message.parts:
        try:
            raw = part.raw if part.raw is not None else base64.b64decode(part.text or "")
            return Instruction.FromString(raw)
        except (DecodeError, binascii.Error):
            continue
    return None


def is_held(instruction: Instruction) -> bool:
    """Whether a task is to go on until it is canceled."""
    if instruction.HasField("return_response"):
        return instruction.return_response.hold_task
    return any(is_held(step) for step in instruction.steps.instructions)


async def done(instruction: Instruction) -> list[str]:
    """Do what an instruction says, and return what is to be answered."""
    if instruction.HasField("return_response"):
        return [instruction.return_response.response]
    if instruction.HasField("call_agent"):
        return await called(instruction.call_agent)
    return [said for step in instruction.steps.instructions for said in await done(step)]


async def called(call: CallAgent) -> list[str]:
    """Call an agent over the binding that is wanted, in the version that its card prefers."""
    part = Part(
        raw=call.instruction.SerializeToString(),
        media_type="application/x-protobuf",
        filename="instruction.bin",
    )
    push = None
    if call.HasField("push_notification"):
        url = call.push_notification.url
        push = f"{url if '://' in url else f'http://{url}'}/notifications"
    binding = BINDINGS[call.transport.upper()]
    async with parley.connect(call.agent_card_uri, binding=binding) as remote:
        if push is not None:
            let_push(remote)
        if call.HasField("resubscribe"):
            return await heard_again(remote, part)
        if call.streaming:
            events = [event async for event in remote.stream([part], push=push)]
            return [text for event in events for text in texts(event)]
        return list(texts(await remote.send([part], push=push)))


def let_push(remote: parley.RemoteAgent) -> None:
    """Have webhooks sent to an agent: the kit's nodes take them, and do not say so."""
    service = cast("RemoteService", remote.service)
    capabilities = replace(service.card.capabilities, push_notifications=True)
    service.card = replace(service.card, capabilities=capabilities)


async def heard_again(remote: parley.RemoteAgent, part: Part) -> list[str]:
    """Begin a task, leave its stream, subscribe to it until it has said enough, and cancel it."""
    stream = remote.stream([part])
    async with aclosing(stream):
        await anext(stream)
    task_id = stream.task_id
    assert task_id is not None
    async with aclosing(remote.subscribe(task_id)) as again:
        async for event in again:
            said = list(texts(event))
            if isinstance(event, Task):  # what a later status has replaced is in the history
                said += [m.text for m in event.history if m.role is Role.AGENT]
            found = next((text for text in said if FINISHED in text), None)
            if found is not None:
                break
        else:
            raise RuntimeError("the task ended without what was to be heard")
    await remote.cancel(task_id)
    return [found.replace(FINISHED, "").strip()]


def texts(event: object) -> Iterable[str]:
    """Yield what an agent says with an event."""
    if isinstance(event, Message):
        yield event.text
    elif isinstance(event, Task | TaskStatusUpdateEvent) and event.status.message is not None:
        yield event.status.message.text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--httpPort", type=int, required=True)
    parser.add_argument("--grpcPort", type=int, required=True)
    asked = parser.parse_args()
    # The kit posts to /jsonrpc/ whatever the card says: that is the path of a tenant.
    parley.serve(
        agent,
        tenants={"jsonrpc": agent},
        port=asked.httpPort,
        grpc_port=asked.grpcPort,
        store="memory:",
        drain=0.5,
        allow_private_webhooks=True,
    )


if __name__ == "__main__":
    main()
