"""Cancels what a task began at other agents, from what its log says. The host hands it over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

from msgspec.structs import replace

from parley.agent.remote.connections import Connections, SharedConnection
from parley.client.card.interface import declares
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.engine.turn.attempt import RemoteCall
from parley.model.errors import A2AError, OverloadedError, TaskNotCancelableError
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND
from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Task
from parley.security.egress import turn_egress

log = logging.getLogger("parley.agent")

CANCEL_SECONDS = 5.0
"""How long the end of a task waits for other agents. A cancellation that arrived takes effect."""


async def cancel_calls(
    connections: Connections, task_id: str, calls: Mapping[str, RemoteCall]
) -> None:
    """Cancel the remote tasks of these calls, by their names. What fails is logged."""
    cancels = [
        asyncio.create_task(_cancel(connections, task_id, name, call))
        for name, call in calls.items()
    ]
    try:
        _, late = await asyncio.wait(cancels, timeout=CANCEL_SECONDS)
        if late:
            log.warning(
                "task %s: %d agents did not confirm within %g s that they canceled its calls",
                task_id,
                len(late),
                CANCEL_SECONDS,
            )
    finally:
        for cancel in cancels:
            cancel.cancel()
        await asyncio.wait(cancels)


async def _cancel(connections: Connections, task_id: str, name: str, call: RemoteCall) -> None:
    shared: SharedConnection | None = None
    turn_egress.set(connections.egress)  # as in the turn that made the call
    local = None if connections.local is None else connections.local.of_call(call)
    try:
        if local is not None:
            await _cancel_at(local, call)
            return
        shared = await connections.acquire_for(task_id, name, call.card or call.address)
        await _cancel_at(shared.agent, call)
    except TaskNotCancelableError:
        pass  # it has ended
    except (A2AError, ClientError, OSError, ValueError) as error:
        log.warning("task %s: its call of %s is not canceled: %s", task_id, call.address, error)
    finally:
        if shared is not None:
            connections.release(shared)


async def _cancel_at(agent: RemoteAgent, call: RemoteCall) -> None:
    """Cancel the task of a call, again while the agent says that it cannot do so now."""
    while True:
        try:
            if remote_id := call.task_id or await _task_of(agent, call):
                await agent.cancel(remote_id)
            return
        except OverloadedError as error:
            await asyncio.sleep(min(1.0, error.retry_after or 0.5))


async def _task_of(agent: RemoteAgent, call: RemoteCall) -> str:
    """Return the task of a message that may have been sent; empty if that cannot be found out.

    An agent with idempotent sends tells it when it gets the same message again.
    """
    context = agent.context
    repeatable = IDEMPOTENT_SEND in context.extensions and declares(agent.card, IDEMPOTENT_SEND)
    if call.request is None or not repeatable:
        return ""
    # If the message did not arrive, it is a new one: it must not begin a loop.
    context = replace(context, extensions=context.extensions | {CALL_CHAIN})
    if not agent.card.capabilities.streaming:
        answer = await agent.service.send_message(call.request, context)
        return "" if isinstance(answer, Message) else answer.id
    items = agent.service.send_streaming_message(call.request, context)
    async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as events:
        async for item in events:
            event = item.event
            if isinstance(event, Message):
                return ""
            return event.id if isinstance(event, Task) else event.task_id
    return ""
