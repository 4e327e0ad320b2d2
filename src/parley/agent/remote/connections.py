"""The connections to other agents that a host's turns share, and cancellations over them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from contextlib import aclosing
from typing import Any, cast

from msgspec.structs import replace

from parley.agent.remote.callees import LocalAgents
from parley.client.auth.credentials import Credential
from parley.client.card.interface import declares
from parley.client.card.resolver import Reference
from parley.client.connection import connect
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.engine.turn.attempt import RemoteCall
from parley.model.bounded import Bounded
from parley.model.concurrency import KeyedLocks
from parley.model.errors import A2AError, OverloadedError, TaskNotCancelableError
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND
from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Task
from parley.security.egress import Egress, turn_egress

log = logging.getLogger("parley.agent")

Connect = Callable[..., Awaitable[RemoteAgent]]
"""Opens a connection: ``parley.connect``, or a replacement."""

MAX_IDLE_CONNECTIONS = 64
"""The maximum number of connections without users."""

MAX_AGE = 300.0
"""The age in seconds at which a connection is reopened, with the agent's current card."""


MAX_CANCELABLE_CALLS = 10_000
"""The maximum number of recorded calls that may have to be canceled; the oldest are dropped."""


class SharedConnection:
    """A connection and the number of its users. It is closed when it is retired and unused.

    ``opened_with`` is the agent's reference with the options, and keeps the objects alive whose
    identity is in the key. ``is_personal``: it has a credential of one user, so it is closed as
    soon as it is unused.
    """

    def __init__(self, agent: RemoteAgent, opened_with: tuple[Reference, dict[str, Any]]) -> None:
        self.agent = agent
        self.users = 0
        self.retired = False
        self.opened = asyncio.get_running_loop().time()
        self.opened_with = opened_with
        given = opened_with[1].get("auth")
        self.is_personal = any(
            isinstance(each, Credential) and each.is_personal
            for each in (given if isinstance(given, list | tuple) else (given,))
        )


class Connections:
    """Opens each connection once, for all turns that request the same agent with equal options.

    ``connect`` opens them, to addresses that ``egress`` allows: a caller may have named the agent,
    and its card names further addresses. ``aclose`` closes all of them; the next turn opens new
    ones. ``local`` has the local agents that may be called, if there are any. ``agent_name`` is the
    calling agent's name.
    """

    def __init__(
        self, connect: Connect = connect, egress: Egress | None = None, agent_name: str = "agent"
    ) -> None:
        self.agent_name = agent_name
        self.connect = connect
        self.egress = egress
        self.local: LocalAgents | None = None
        self._shared: dict[Hashable, SharedConnection] = {}
        self._of_calls: Bounded[tuple[str, str], tuple[Reference, dict[str, Any]]]
        self._of_calls = Bounded(MAX_CANCELABLE_CALLS)
        self._locks = KeyedLocks()
        self._retired: set[SharedConnection] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def acquire(self, reference: Reference, options: Mapping[str, Any]) -> SharedConnection:
        """Return a connection, to be passed to ``release``. Raises the errors of ``connect``."""
        key = (_frozen(reference), _frozen(options))
        async with self._locks.of(key):
            found = self._shared.get(key)
            now = asyncio.get_running_loop().time()
            if found is not None and (found.retired or now - found.opened > MAX_AGE):
                del self._shared[key]
                self.retire(found)
                found = None
            if found is None:
                # A caller may have chosen the agent, so logins of the server's user are used only
                # if the author asks for it.
                agent = await self.connect(reference, **{"auth": False, **self._guarded(options)})
                found = SharedConnection(agent, (reference, dict(options)))
                self._shared[key] = found
            found.users += 1
        self._drop_idle()
        return found

    def _guarded(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options with the policy added; a policy of the author is restricted by it.

        A transport that the author gives is guarded while a turn runs.
        """
        if self.egress is None or options.get("http") is not None:
            return options
        given: Egress | None = options.get("egress")
        egress = self.egress if given is None else given.within(self.egress)
        return {**options, "egress": egress}

    def note(self, task_id: str, call: str, shared: SharedConnection) -> None:
        """Record how a call's connection was opened, with the credentials for canceling its task.

        Only the newest ``MAX_CANCELABLE_CALLS`` calls are recorded. See ``forget``.
        """
        self._of_calls[task_id, call] = shared.opened_with

    def forget(self, task_id: str, call: str) -> None:
        """Drop the record of an ended call. Idempotent."""
        self._of_calls.pop((task_id, call), None)

    async def acquire_for(self, task_id: str, call: str, reference: Reference) -> SharedConnection:
        """Return a connection like the one of a call.

        If the call is not recorded, because its process is gone, the connection is to ``reference``
        without credentials.
        """
        reference, options = self._of_calls.get((task_id, call), (reference, {}))
        return await self.acquire(reference, options)

    def release(self, shared: SharedConnection) -> None:
        """Release a connection."""
        shared.users -= 1
        if not shared.users and shared.is_personal:
            self._shared = {k: each for k, each in self._shared.items() if each is not shared}
        if not shared.users and (shared.is_personal or shared.retired):
            self._close(shared)
        self._drop_idle()

    def retire(self, shared: SharedConnection) -> None:
        """Let the next turn open a new connection, because this one is old or broken."""
        if shared.retired:
            return
        shared.retired = True
        self._retired.add(shared)
        if not shared.users:
            self._close(shared)

    async def aclose(self) -> None:
        """Close all connections, even while calls use them."""
        for shared in (*self._shared.values(), *self._retired):
            self._close(shared)
        self._shared.clear()
        self._of_calls.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _drop_idle(self) -> None:
        idle = [key for key, shared in self._shared.items() if not shared.users]
        for key in idle[: max(0, len(idle) - MAX_IDLE_CONNECTIONS)]:
            self.retire(self._shared.pop(key))

    def _close(self, shared: SharedConnection) -> None:
        shared.retired = True
        self._retired.discard(shared)
        closing = asyncio.create_task(_close(shared.agent))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _close(agent: RemoteAgent) -> None:
    try:
        await agent.aclose()
    except (ClientError, OSError) as error:
        log.warning("a connection to %r was not closed cleanly: %s", agent.card.name, error)


def _frozen(value: Any) -> Hashable:
    """Return a key: equal values have equal keys, and objects are compared by identity."""
    if isinstance(value, Mapping):
        return ("map", frozenset((name, _frozen(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(_frozen(each) for each in value))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


CANCEL_SECONDS = 5.0
"""The time that the end of a task waits for other agents. Cancellations that were sent still
apply."""


async def cancel_calls(
    connections: Connections, task_id: str, calls: Mapping[str, RemoteCall]
) -> None:
    """Cancel the remote tasks of these calls, by name. Failures are logged."""
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
    turn_egress.set(connections.egress)  # as in the calling turn
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
    """Cancel the task of a call; repeat while the agent answers that it cannot do so now."""
    while True:
        try:
            if remote_id := call.task_id or await _task_of(agent, call):
                await agent.cancel(remote_id)
            return
        except OverloadedError as error:
            await asyncio.sleep(min(1.0, error.retry_after or 0.5))


async def _task_of(agent: RemoteAgent, call: RemoteCall) -> str:
    """Return the task of a message that may have been sent; empty if it is unknown.

    An agent with idempotent sends returns it when it gets the same message again.
    """
    context = agent.context
    repeatable = IDEMPOTENT_SEND in context.extensions and declares(agent.card, IDEMPOTENT_SEND)
    if call.request is None or not repeatable:
        return ""
    # If the message had not arrived, it would be new: the chain check prevents a loop.
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
