"""``turn.connect`` and ``turn.delegate``: from a reference to an agent bound to the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import Any, Unpack

from parley.agent.remote.addresses import address_of
from parley.agent.remote.bound_agent import BoundAgent, MessageOptions, time_limit
from parley.agent.remote.turn_calls import TurnCalls
from parley.client.card.resolver import Reference
from parley.client.errors import RemoteTaskFailed, Timeout
from parley.client.message import Sendable
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState


class TurnConnection:
    """A connection to be opened: ``async with`` it, or ``await`` it.

    It is closed with the turn, if not before.
    """

    def __init__(self, calls: TurnCalls, reference: Reference, options: Mapping[str, Any]) -> None:
        self._calls = calls
        self._reference = reference
        self._options = options
        self._agent: BoundAgent | None = None

    def __await__(self) -> Generator[Any, None, BoundAgent]:
        return self._open().__await__()

    async def __aenter__(self) -> BoundAgent:
        self._agent = await self._open()
        return self._agent

    async def __aexit__(self, *error: object) -> None:
        if self._agent is not None:
            self._agent.release()

    async def _open(self) -> BoundAgent:
        calls = self._calls
        with calls.attempt.waits.busy():  # another branch that sleeps does not hold up the call
            shared = await calls.connections.acquire(self._reference, self._options)
        agent = BoundAgent(shared.agent, self._reference, calls, shared)
        calls.opened(agent.release)
        return agent


async def delegate(
    calls: TurnCalls,
    agent: Reference | BoundAgent,
    message: Sendable | None,
    *,
    key: str | None,
    pass_questions: bool,
    progress: bool,
    artifacts: bool,
    cancel_remote: bool,
    timeout: float | None,
    **options: Unpack[MessageOptions],
) -> Task | Message:
    """Delegate to another agent, and return its answer (``turn.delegate``)."""
    began = asyncio.get_running_loop().time()
    if isinstance(agent, BoundAgent):
        name, opened = calls.begin(agent.address, key), agent
    else:  # the name depends on the order of the calls, so it is taken before anything is awaited
        address = address_of(agent)
        name = calls.begin(address, key)
        try:
            async with time_limit(timeout, began) as limit:
                opened = await TurnConnection(calls, agent, {})
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"no connection to {address} within {timeout:g} s") from None
    try:
        answer = await opened.answer(
            name,
            message,
            context_key=key or "",
            pass_questions=pass_questions,
            progress=progress,
            artifacts=artifacts,
            cancel_remote=cancel_remote,
            timeout=timeout,
            began=began,
            **options,
        )
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


_FAILURES = {
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "was canceled",
    TaskState.REJECTED: "was rejected",
}
