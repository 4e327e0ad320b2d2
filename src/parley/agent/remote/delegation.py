"""A turn's calls of other agents: ``turn.connect``, ``turn.delegate``, and the blocking form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from parley.agent.remote.bound_agent import BoundAgent, TurnCallOptions, split_options, time_limit
from parley.agent.remote.callees import Callee, address_of, not_used, referred
from parley.agent.remote.connections import CANCEL_SECONDS, SharedConnection
from parley.agent.remote.turn_calls import NO_TERMS, CallTerms, TurnCalls
from parley.agent.uses import UsableAgent
from parley.client.answer import Answer
from parley.client.calls.service import Unopened
from parley.client.errors import ClientError, Timeout
from parley.client.message import Sendable
from parley.client.sync import SyncEventStream, SyncRemoteAgent
from parley.model.blocking import SyncProxy, blocking, wrapping
from parley.model.errors import A2AError, TaskNotCancelableError

log = logging.getLogger("parley.agent")

R = TypeVar("R")


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
    returns: Any = None,
    timeout: float | None = None,
    terms: CallTerms = NO_TERMS,
    connection: Mapping[str, Any] = {},
    **options: Unpack[TurnCallOptions],
) -> Answer[Any]:
    """Delegate to another agent, and return its answer (``turn.delegate``).

    ``terms`` come from a composition, ``connection`` has the options of the connection. When the
    time of the terms is over, the remote task is canceled.
    """
    began = asyncio.get_running_loop().time()
    key = options.get("key")
    call, said = split_options(calls, options, terms)
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
        result = opened._result_type(returns, said.get("skill"))
        reply = await opened.for_call(name).reply(
            name, message, said, call, timeout=timeout, began=began
        )
        answer = opened._answer(reply, result)
    except Timeout as late:
        if terms.seconds is not None and late.task_id:
            await _cancel_late(opened.for_call(name), late.task_id)
        raise
    finally:
        if opened is not agent:
            opened.release()
    return answer.required() if answer.state.is_terminal else answer


async def _cancel_late(agent: BoundAgent, task_id: str) -> None:
    """Cancel a remote task whose time is over. Failures are logged."""
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            await agent.cancel(task_id)
    except TaskNotCancelableError:
        pass  # it has ended: it knew its deadline
    except (A2AError, ClientError, TimeoutError) as error:
        log.warning("the task %s of %s is not canceled: %s", task_id, agent.card.name, error)


class BlockingAgent(SyncRemoteAgent):
    """``BoundAgent`` with blocking methods, for a function that runs in a thread.

    Concurrent calls from several threads need keys: their order is not certain.
    """

    close = blocking(BoundAgent.aclose)
    if TYPE_CHECKING:

        def stream(
            self, message: Any = None, **options: Unpack[TurnCallOptions]
        ) -> SyncEventStream:
            """Send a message, and iterate over its events: see ``BoundAgent.stream``."""
            ...

        @overload
        def send(
            self,
            message: Sendable | None = None,
            *,
            returns: type[R],
            timeout: float | None = None,
            **options: Unpack[TurnCallOptions],
        ) -> Answer[R]: ...

        @overload
        def send(
            self,
            message: Sendable | None = None,
            *,
            returns: object = None,
            timeout: float | None = None,
            **options: Unpack[TurnCallOptions],
        ) -> Answer[Any]: ...

        def send(self, message: Any = None, **options: Any) -> Answer[Any]:
            """Send a message once in the life of the task: see ``BoundAgent.send``."""
            ...

    else:
        send = blocking(BoundAgent.send)
        stream = wrapping(BoundAgent.stream, SyncEventStream)

    def __init__(self, turn: SyncProxy[Any], connection: TurnConnection) -> None:
        SyncProxy.__init__(self, turn._run(connection.open()), turn._thread)
