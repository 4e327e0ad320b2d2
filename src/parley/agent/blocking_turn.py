"""The turn for an author's plain function, which runs in a thread: the methods of ``Turn`` block.

``agent/invoke.py`` makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from parley.agent.artifact_stream import BlockingStream
from parley.agent.files import BlockingFile
from parley.agent.turn import Turn
from parley.agent.turn_facts import TurnFacts
from parley.engine.turn.attempt import Attempt, UserAnswer
from parley.model.blocking import SyncProxy, blocking, wrapping
from parley.model.cards import SecurityScheme
from parley.model.parts import Part
from parley.security.schemes.scheme import Scheme

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from parley.agent.authorization import TaskCredential
    from parley.agent.remote.bound_agent import BoundAgent, TurnCallOptions
    from parley.agent.remote.callees import Callee
    from parley.agent.remote.delegation import BlockingAgent, TurnConnection
    from parley.agent.tools.turn_tools import BlockingTools, TurnToolsOpening
    from parley.client.answer import Answer
    from parley.client.auth import AuthorizationCode
    from parley.client.message import Sendable
    from parley.client.sync import SyncIterator

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_UPDATING: ContextVar[str] = ContextVar("_UPDATING", default="")
"""The key that this thread is updating."""


def _set_result(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():  # the turn may have been canceled meanwhile
        answer.set_result(result)


class TurnThread:
    """Runs coroutines on the loop of a turn, for the thread of its function."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self.loop = asyncio.get_running_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine; the turn's end raises ``asyncio.CancelledError``."""
        return self.result(self.begin(coroutine))

    def result(self, future: Future[T]) -> T:
        """Wait for the result of a coroutine that was begun."""
        try:
            return future.result()
        except CancelledError:  # unlike asyncio's, this class is an Exception
            raise asyncio.CancelledError from None

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine. The end of the turn cancels it.

        Raises ``RuntimeError`` if the turn's loop is closed.
        """
        attempt = self._attempt

        async def called() -> T:
            task = asyncio.current_task()
            assert task is not None
            if attempt.finished:
                coroutine.close()
                raise asyncio.CancelledError
            attempt.calls |= {task}
            try:
                return await coroutine
            finally:
                attempt.calls -= {task}

        if self.loop.is_closed():
            coroutine.close()
            raise RuntimeError("the server of this turn has ended: the loop that ran it is closed")
        return asyncio.run_coroutine_threadsafe(called(), self.loop)


def _agent(turn: BlockingTurn, opening: TurnConnection) -> BlockingAgent:
    from parley.agent.remote.delegation import BlockingAgent

    return BlockingAgent(turn, opening)


def _tools(turn: BlockingTurn, opening: TurnToolsOpening) -> BlockingTools:
    from parley.agent.tools.turn_tools import BlockingTools

    return BlockingTools(turn, opening)


def _iterator(turn: BlockingTurn, items: AsyncIterator[T]) -> SyncIterator[T]:
    from parley.client.sync import SyncIterator

    return SyncIterator(turn, items)


class BlockingTurn(TurnFacts, SyncProxy[Turn]):
    """One turn, for a function that runs in a thread. ``Turn`` documents the methods.

    When the task is canceled, or waits for its caller, the next call of a method that blocks raises
    ``CancelledError``; do not catch it.
    """

    _thread: TurnThread

    def __init__(self, turn: Turn) -> None:
        TurnFacts.__init__(self, turn._attempt, turn._services)
        SyncProxy.__init__(self, turn, TurnThread(turn._attempt))

    @property
    def files(self) -> tuple[BlockingFile, ...]:
        """The file parts of the message that began the task: ``turn.files[0].read()``."""
        return tuple(self.file(part) for part in self.message.parts if part.is_file)

    def file(self, part: Part) -> BlockingFile:
        """Return a file part of any message or artifact, with methods to read it."""
        return BlockingFile.of_turn(self._target.file(part), self)

    references = blocking(Turn.references)
    referenced_artifacts = blocking(Turn.referenced_artifacts)
    reference = blocking(Turn.reference)
    wait_for = blocking(Turn.wait_for)
    other_tasks = blocking(Turn.other_tasks)
    working = blocking(Turn.working)
    artifact = blocking(Turn.artifact)

    stream = wrapping(Turn.stream, BlockingStream)

    if TYPE_CHECKING:  # a type cannot inherit the overloads of a method

        @overload
        def ask(self, question: object, *, key: str | None = None) -> UserAnswer: ...

        @overload
        def ask(self, question: object, *, answer: type[R], key: str | None = None) -> R: ...

        @overload
        def ask(self, question: object, *, answer: object, key: str | None = None) -> Any: ...

        def ask(self, question: object, *, answer: Any = None, key: str | None = None) -> Any:
            """Ask the caller: see ``Turn.ask``."""

        @overload
        def require_auth(self, content: object, *, key: str | None = None) -> UserAnswer: ...

        @overload
        def require_auth(
            self,
            content: object,
            *,
            key: str | None = None,
            scheme: Scheme | SecurityScheme | None = None,
            scopes: Sequence[str] | str = (),
            oauth: AuthorizationCode | None = None,
            expires: timedelta | None = None,
            from_anyone: bool = False,
        ) -> TaskCredential: ...

        def require_auth(self, content: object, **options: Any) -> Any:
            """Ask for authorisation: see ``Turn.require_auth``."""

        @overload
        def step(
            self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
        ) -> R: ...

        @overload
        def step(
            self, key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
        ) -> R: ...

        def step(
            self, key: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs
        ) -> Any:
            """Call a function once in the life of the task: see ``Turn.step``."""

        @overload
        def delegate(
            self,
            agent: Callee | BoundAgent | BlockingAgent,
            message: Sendable | None = None,
            *,
            returns: type[R],
            timeout: float | None = None,
            **options: Unpack[TurnCallOptions],
        ) -> Answer[R]: ...

        @overload
        def delegate(
            self,
            agent: Callee | BoundAgent | BlockingAgent,
            message: Sendable | None = None,
            *,
            returns: object = None,
            timeout: float | None = None,
            **options: Unpack[TurnCallOptions],
        ) -> Answer[Any]: ...

        def delegate(self, agent: Any, message: Any = None, **options: Any) -> Answer[Any]:
            """Delegate to another agent: see ``Turn.delegate``."""

    else:
        ask = blocking(Turn.ask)
        delegate = blocking(Turn.delegate)
        require_auth = blocking(Turn.require_auth)
        step = blocking(Turn.step)

    authorize = blocking(Turn.authorize)
    sleep = blocking(Turn.sleep)
    wait_event = blocking(Turn.wait_event)
    callback = blocking(Turn.callback)
    connect = wrapping(Turn.connect, _agent)
    tools = wrapping(Turn.tools, _tools)
    messages = wrapping(Turn.messages, _iterator)
    history = blocking(Turn.history)
    recall = blocking(Turn.recall)

    def update(self, key: str, function: Callable[[Any], R], default: Any = None) -> R:
        """Change the value of ``key`` in this context atomically, and return the new value.

        ``function`` runs in this thread. Raises ``RuntimeError`` inside the function of an update.
        """
        thread = self._thread
        calls: SimpleQueue[tuple[Any, asyncio.Future[Any]] | None] = SimpleQueue()

        async def call_here(_: Callable[[Any], Any], value: Any) -> Any:
            answer = thread.loop.create_future()
            calls.put((value, answer))
            result, error = await answer
            if error is not None:
                raise error
            return result

        if outer := _UPDATING.get():
            # Nested updates of two keys in two turns would deadlock.
            raise RuntimeError(
                f"the function that updates {outer!r} updates {key!r}: "
                + ("return it" if key == outer else "do one after the other")
            )
        updating: Future[R] = thread.begin(
            self._context.update(key, function, default, apply=call_here)
        )
        updating.add_done_callback(lambda _: calls.put(None))
        try:
            while (pending := calls.get()) is not None:
                value, answer = pending
                result, error = None, None
                token = _UPDATING.set(key)
                try:
                    result = function(value)
                except Exception as raised:
                    error = raised
                finally:
                    _UPDATING.reset(token)
                thread.loop.call_soon_threadsafe(_set_result, answer, (result, error))
        except BaseException:
            updating.cancel()
            raise
        return thread.result(updating)

    remember = blocking(Turn.remember)
