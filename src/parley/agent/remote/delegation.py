"""A turn's calls of other agents: ``turn.connect``, ``turn.delegate``, and the blocking form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from typing import Any, Unpack, cast

from parley.agent.remote.bound_agent import BoundAgent, MessageOptions, time_limit
from parley.agent.remote.callees import Callee, address_of, not_used, referred
from parley.agent.remote.connections import CANCEL_SECONDS, SharedConnection
from parley.agent.remote.turn_calls import NO_TERMS, CallOptions, CallTerms, TurnCalls
from parley.agent.uses import UsableAgent
from parley.client.calls.service import Unopened
from parley.client.errors import ClientError, RemoteTaskFailed, Timeout
from parley.client.message import Sendable
from parley.client.sync import SyncEventStream, SyncRemoteAgent
from parley.model.blocking import SyncProxy, blocking, wrapping
from parley.model.errors import A2AError, TaskNotCancelableError
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState

log = logging.getLogger("parley.agent")


class TurnConnection(Unopened):
    """A connection that is not open yet: ``async with`` it, or ``await`` it.

    It is closed with the turn at the latest.
    """

    def __init__(self, calls: TurnCalls, agent: Callee, options: Mapping[str, Any]) -> None:
        self._calls = calls
        self._reference, of_registry = referred(agent)
        is_own = options.get("http") is not None or options.get("egress") is not None
        self._options = options if is_own else {**options, **of_registry}
        self._agent: BoundAgent | None = None

    def __await__(self) -> Generator[Any, None, BoundAgent]:
        return self.open().__await__()

    async def __aenter__(self) -> BoundAgent:
        self._agent = await self.open()
        return self._agent

    async def __aexit__(self, *error: object) -> None:
        if self._agent is not None:
            self._agent.release()

    async def open(self) -> BoundAgent:
        """Open it. Raises the errors of ``parley.connect``."""
        calls, reference = self._calls, self._reference
        if isinstance(reference, UsableAgent):
            local = calls.connections.local
            if local is None:
                raise not_used(calls.agent_name, reference)
            client = local.of_turn(reference, calls.attempt, self._options)
            own = SharedConnection(client, ("", {}))  # not shared: it belongs to the turn's caller
            own.users = 1
            return BoundAgent(client, reference, calls, own)
        with calls.attempt.waits.busy():  # a sleeping branch must not suspend the turn during this
            shared = await calls.connections.acquire(reference, self._options)
        agent = BoundAgent(shared.agent, reference, calls, shared)
        calls.opened(agent.release)
        return agent


async def delegate(
    calls: TurnCalls,
    agent: Callee | BoundAgent | BlockingAgent,
    message: Sendable | None,
    *,
    key: str | None,
    pass_questions: bool,
    progress: bool,
    artifacts: bool,
    cancel_remote: bool,
    timeout: float | None,
    terms: CallTerms = NO_TERMS,
    connection: Mapping[str, Any] = {},
    context_key: str | None = None,
    **options: Unpack[MessageOptions],
) -> Task | Message:
    """Delegate to another agent, and return its answer (``turn.delegate``).

    ``terms`` come from a composition, ``connection`` has the options of the connection. When the
    time of the terms is over, the remote task is canceled. Calls with the same ``context_key``, by
    default ``key``, share a context of the other agent.
    """
    began = asyncio.get_running_loop().time()
    call = CallOptions(
        context_key=(key or "") if context_key is None else context_key,
        pass_questions=pass_questions,
        progress=progress,
        artifacts=artifacts,
        cancel_remote=cancel_remote,
        terms=terms,
    )
    if isinstance(agent, BlockingAgent):
        agent = cast("BoundAgent", agent._target)
    if isinstance(agent, BoundAgent):
        name, opened = calls.begin(agent.address, key), agent
    else:  # the name depends on the order of calls, so it is assigned before any await
        address = address_of(referred(agent)[0])
        name = calls.begin(address, key)
        try:
            async with time_limit(timeout, began) as limit:
                opened = await TurnConnection(calls, agent, connection)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"no connection to {address} within {timeout:g} s") from None
    try:
        answer = await opened.for_call(name).answer(
            name, message, options, call, timeout=timeout, began=began
        )
    except Timeout as late:
        if terms.seconds is not None and late.task_id:
            await _cancel_late(opened.for_call(name), late.task_id)
        raise
    finally:
        if opened is not agent:
            opened.release()
    if isinstance(answer, Task) and answer.state in _FAILURES:
        raise RemoteTaskFailed(
            f"the task {answer.id} of {opened.card.name} {_FAILURES[answer.state]}: "
            f"{answer.text[:500]}",
            task=answer,
        )
    return answer


async def _cancel_late(agent: BoundAgent, task_id: str) -> None:
    """Cancel a remote task whose time is over. Failures are logged."""
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await agent.cancel(task_id)
    except TaskNotCancelableError:
        pass  # it has ended: it knew its deadline
    except (A2AError, ClientError, TimeoutError) as error:
        log.warning("the task %s of %s is not canceled: %s", task_id, agent.card.name, error)


_FAILURES = {
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "was canceled",
    TaskState.REJECTED: "was rejected",
}


class _BoundCalls:  # assigned in ``BlockingAgent`` itself, they would get the types of its base
    send = blocking(BoundAgent.send)
    stream = wrapping(BoundAgent.stream, SyncEventStream)
    close = blocking(BoundAgent.aclose)


class BlockingAgent(_BoundCalls, SyncRemoteAgent):
    """``BoundAgent`` with blocking methods, for a function that runs in a thread.

    Concurrent calls from several threads need keys: their order is not certain.
    """

    def __init__(self, turn: SyncProxy[Any], connection: TurnConnection) -> None:
        SyncProxy.__init__(self, turn._run(connection.open()), turn._thread)
