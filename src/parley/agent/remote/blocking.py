"""``BlockingAgent``: another agent, called by a turn in a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, Unpack, cast

from parley.agent.remote.bound_agent import BoundAgent, MessageOptions
from parley.client.message import Sendable
from parley.client.sync import SyncEventStream, SyncRemoteAgent
from parley.model.parts import Message
from parley.model.tasks import Task

T = TypeVar("T")

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of the turn, and returns its result in the turn's thread."""


class TurnThread:
    """The thread of a turn, in the place of the blocking client's: the turn's loop runs calls."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait
        self.on_close: Any = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns."""
        return cast("T", self._wait(coroutine))

    _run = run

    def close(self) -> None:
        """Do nothing: the turn ends its thread."""


class BlockingAgent(SyncRemoteAgent):
    """``BoundAgent`` with blocking methods, for a function that runs in a thread.

    Concurrent calls from several threads need keys: their order is not certain.
    """

    def __init__(self, agent: BoundAgent, wait: Wait) -> None:
        super().__init__(cast("Any", TurnThread(wait)), agent)
        self._bound = agent

    def send(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        pass_questions: bool = False,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        return_immediately: bool = False,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Send a message once in the life of the task, and return the answer."""
        return self._run(
            self._bound.send(
                message,
                key=key,
                pass_questions=pass_questions,
                progress=progress,
                artifacts=artifacts,
                cancel_remote=cancel_remote,
                return_immediately=return_immediately,
                timeout=timeout,
                **options,
            )
        )

    def stream(
        self,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        cancel_remote: bool = True,
        **options: Unpack[MessageOptions],
    ) -> SyncEventStream:
        """Send a message once in the life of the task, and iterate over the events of its turn."""
        stream = self._bound.stream(message, key=key, cancel_remote=cancel_remote, **options)
        return SyncEventStream(self, stream)

    @property
    def bound(self) -> BoundAgent:
        """The agent that ``turn.delegate`` takes."""
        return self._bound

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Give the connection back. Idempotent; the turn's end does it too."""
        self._run(self._bound.aclose())
