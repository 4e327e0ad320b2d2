"""The turn that an author's plain function gets, in a thread: the methods of ``Turn`` block.

``agent/invoke.py`` makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.authorization import TaskCredential
from parley.agent.files import BlockingFile
from parley.agent.remote.bound_agent import BlockingAgent, BoundAgent, MessageOptions
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolSource
from parley.agent.tools.turn_tools import BlockingTools
from parley.agent.turn import Turn
from parley.agent.turn_facts import TurnFacts
from parley.client.message import Sendable
from parley.engine.turn.attempt import Answer
from parley.model.cards import SecurityScheme
from parley.model.parts import Message, Part
from parley.model.tasks import Task
from parley.security.schemes.scheme import Scheme

if TYPE_CHECKING:
    from parley.client.auth import AuthorizationCode

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class BlockingStream:
    """An artifact that a thread writes chunk by chunk."""

    def __init__(self, stream: ArtifactStream, wait: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._wait = wait
        self.artifact_id = stream.artifact_id

    def write(self, chunk: object) -> None:
        """Add a chunk. Blocks until the store has caught up."""
        self._wait(self._stream.write(chunk))


_UPDATING: ContextVar[str] = ContextVar("_UPDATING", default="")
"""The key that this thread updates."""


def _set_result(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():  # the turn may have been canceled meanwhile
        answer.set_result(result)


def _call(
    method: Callable[Concatenate[Turn, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingTurn, P], T]:
    @wraps(method)
    def call(self: BlockingTurn, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self._turn, *args, **kwargs))

    return call


class BlockingTurn(TurnFacts):
    """One turn, for a function that runs in a thread. ``Turn`` documents the methods.

    When the task is canceled, or waits for its caller, the next call of a method that blocks raises
    ``CancelledError``; do not catch it.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn._attempt)
        self._turn = turn
        self._loop = asyncio.get_running_loop()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._result(self._begin(coroutine))

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:  # which is an Exception, unlike what ends the function of a task
            raise asyncio.CancelledError from None

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
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

        return asyncio.run_coroutine_threadsafe(called(), self._loop)

    @property
    def base_url(self) -> str:
        """The agent's public address, without a trailing slash; empty if it is not known."""
        return self._turn.base_url

    @property
    def state(self) -> Any:
        """The value of the agent's lifespan, which opened it before its turns run."""
        return self._turn.state

    @property
    def files(self) -> tuple[BlockingFile, ...]:
        """The file parts of the message that began the task: ``turn.files[0].read()``."""
        return tuple(self.file(part) for part in self.message.parts if part.is_file)

    def file(self, part: Part) -> BlockingFile:
        """Return a file part of any message or artifact, with methods to read it."""
        return BlockingFile.blocking(part, self._turn.file(part), self._wait)

    references = _call(Turn.references)
    referenced_artifacts = _call(Turn.referenced_artifacts)
    reference = _call(Turn.reference)
    wait_for = _call(Turn.wait_for)
    other_tasks = _call(Turn.other_tasks)
    working = _call(Turn.working)
    artifact = _call(Turn.artifact)

    def stream(self, name: str = "", **options: Any) -> AbstractContextManager[BlockingStream]:
        """Return an artifact to write chunk by chunk: ``with turn.stream() as out``."""
        return self._streaming(name, options)

    @contextmanager
    def _streaming(self, name: str, options: dict[str, Any]) -> Iterator[BlockingStream]:
        async def open_stream() -> ArtifactStream:
            return await self._turn.stream(name, **options).__aenter__()

        async def close(stream: ArtifactStream, error: BaseException | None) -> None:
            await stream.__aexit__(type(error) if error else None, error, None)

        stream = self._wait(open_stream())
        try:
            yield BlockingStream(stream, self._wait)
        except BaseException as error:
            self._wait(close(stream, error))
            raise
        self._wait(close(stream, None))

    @overload
    def ask(self, question: object, *, key: str | None = None) -> Answer: ...

    @overload
    def ask(self, question: object, *, answer: type[R], key: str | None = None) -> R: ...

    @overload
    def ask(self, question: object, *, answer: object, key: str | None = None) -> Any: ...

    def ask(self, question: object, *, answer: Any = None, key: str | None = None) -> Any:
        """Ask the caller, and return the message that answers, or a value of a type."""
        return self._wait(self._turn.ask(question, answer=answer, key=key))

    @overload
    def require_auth(self, content: object, *, key: str | None = None) -> Answer: ...

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
        """Ask for authorisation, and return the credential, or the message that answers."""
        return self._wait(self._turn.require_auth(content, **options))

    authorize = _call(Turn.authorize)
    sleep = _call(Turn.sleep)
    wait_event = _call(Turn.wait_event)

    @overload
    def step(
        self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def step(self, key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, key: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call a function once in the life of the task; later attempts replay its result."""
        return self._wait(self._turn.step(key, function, *args, **kwargs))

    callback = _call(Turn.callback)

    def connect(self, agent: Callee, **options: Any) -> BlockingAgent:
        """Connect to another agent: ``with turn.connect(url) as remote``."""

        async def connected() -> BoundAgent:
            return await self._turn.connect(agent, **options)

        return BlockingAgent(self._wait(connected()), self._wait)

    def delegate(
        self,
        agent: Callee | BlockingAgent,
        message: Sendable | None = None,
        *,
        key: str | None = None,
        pass_questions: bool = True,
        progress: bool = False,
        artifacts: bool = False,
        cancel_remote: bool = True,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> Task | Message:
        """Delegate to another agent, and return its answer: a task, or a direct message."""
        return self._wait(
            self._turn.delegate(
                agent.bound if isinstance(agent, BlockingAgent) else agent,
                message,
                key=key,
                pass_questions=pass_questions,
                progress=progress,
                artifacts=artifacts,
                cancel_remote=cancel_remote,
                timeout=timeout,
                **options,
            )
        )

    def tools(self, *sources: ToolSource, progress: bool = True) -> BlockingTools:
        """Use the tools of sources: ``with turn.tools(McpServer(url)) as tools``."""
        return BlockingTools(self._turn.tools(*sources, progress=progress), self._wait)

    def messages(self) -> Iterator[Message]:
        """Yield messages to this task as they arrive while the turn runs."""
        while True:
            yield self._wait(self._attempt.next_message())

    history = _call(Turn.history)
    recall = _call(Turn.recall)

    def update(self, key: str, function: Callable[[Any], R], default: Any = None) -> R:
        """Change the value of ``key`` in this context atomically, and return the new value.

        ``function`` runs in this thread. Raises ``RuntimeError`` inside the function of an update.
        """
        calls: SimpleQueue[tuple[Any, asyncio.Future[Any]] | None] = SimpleQueue()

        async def call_here(_: Callable[[Any], Any], value: Any) -> Any:
            answer = self._loop.create_future()
            calls.put((value, answer))
            result, error = await answer
            if error is not None:
                raise error
            return result

        if outer := _UPDATING.get():
            # Nested updates of two keys by two turns would deadlock.
            raise RuntimeError(
                f"the function that updates {outer!r} updates {key!r}: "
                + ("return it" if key == outer else "do one after the other")
            )
        context = self._turn._context
        updating: Future[R] = self._begin(context.update(key, function, default, apply=call_here))
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
                self._loop.call_soon_threadsafe(_set_result, answer, (result, error))
        except BaseException:
            updating.cancel()
            raise
        return self._result(updating)

    remember = _call(Turn.remember)
