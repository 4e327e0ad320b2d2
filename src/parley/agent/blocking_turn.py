"""The turn as plain functions see it: the same methods, which block."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.turn import Turn
from parley.engine.answer import Answer
from parley.model.parts import Artifact, Message, Part
from parley.model.service import Caller
from parley.model.tasks import Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class BlockingStream:
    """An artifact that grows, written from a thread."""

    def __init__(self, stream: ArtifactStream, wait: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._wait = wait
        self.artifact_id = stream.artifact_id

    def write(self, chunk: object) -> None:
        """Add a chunk. Blocks while the store is behind."""
        self._wait(self._stream.write(chunk))


_UPDATING: ContextVar[str] = ContextVar("_UPDATING", default="")
"""The key whose value a function of this thread updates just now."""


def _settle(answer: asyncio.Future[Any], result: object) -> None:
    if not answer.done():  # the turn may have been canceled meanwhile
        answer.set_result(result)


class BlockingTurn:
    """One turn, for a function that runs in a thread. See ``Turn`` for what everything means.

    When the task is canceled, or a question parks it, the next call of any method raises
    ``CancelledError``; let it pass.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._loop = asyncio.get_running_loop()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._begin(coroutine).result()

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        run = self._turn.run

        async def called() -> T:
            task = asyncio.current_task()
            assert task is not None
            if run.finished:
                coroutine.close()
                raise asyncio.CancelledError
            run.calls |= {task}
            try:
                return await coroutine
            finally:
                run.calls -= {task}

        return asyncio.run_coroutine_threadsafe(called(), self._loop)

    @property
    def message(self) -> Message:
        """The message that began the task."""
        return self._turn.message

    @property
    def latest(self) -> Message:
        """The newest message that a turn took."""
        return self._turn.latest

    @property
    def text(self) -> str:
        """The text of the message that began the task."""
        return self._turn.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message that began the task."""
        return self._turn.parts

    @property
    def files(self) -> tuple[Part, ...]:
        """Its file parts."""
        return self._turn.files

    @property
    def data(self) -> Any:
        """The value of its first data part, ``None`` without one."""
        return self._turn.data

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the request and of its message."""
        return self._turn.metadata

    @property
    def accepted_output_modes(self) -> tuple[str, ...]:
        """The media types that the caller accepts; none means any."""
        return self._turn.accepted_output_modes

    def accepts(self, media_type: str) -> bool:
        """Whether the caller takes parts of this media type."""
        return self._turn.accepts(media_type)

    @property
    def skill_id(self) -> str:
        """The id of the skill that runs."""
        return self._turn.skill_id

    @property
    def caller(self) -> Caller:
        """The caller of this turn's message: the same in every run of it, also after a restart."""
        return self._turn.caller

    @property
    def tenant(self) -> str:
        """The tenant that the request named."""
        return self._turn.tenant

    @property
    def extensions(self) -> frozenset[str]:
        """The URIs of the extensions that are in force."""
        return self._turn.extensions

    @property
    def task(self) -> Task | None:
        """The task as it stands, ``None`` while there is none."""
        return self._turn.task

    @property
    def task_id(self) -> str:
        """The id that the task has, or will have if one is made."""
        return self._turn.task_id

    @property
    def context_id(self) -> str:
        """The context that the message belongs to."""
        return self._turn.context_id

    @property
    def number(self) -> int:
        """Which turn of the task this is, from 1."""
        return self._turn.number

    @property
    def attempt(self) -> int:
        """Which attempt at this turn this is, from 1."""
        return self._turn.attempt

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the task and the skill."""
        return self._turn.log

    def references(self) -> tuple[Task, ...]:
        """Return the tasks that the newest message refers to."""
        return self._wait(self._turn.references())

    def referenced_artifacts(self) -> tuple[Artifact, ...]:
        """Return the artifacts that parts of the newest message name in their metadata."""
        return self._wait(self._turn.referenced_artifacts())

    def reference(
        self,
        question: str = "Which of these do you mean?",
        *,
        where: Callable[[Task], bool] | None = None,
        describe: Callable[[Task], str] | None = None,
    ) -> Task | None:
        """Return the earlier task that the message is about, and ask when in doubt."""
        return self._wait(self._turn.reference(question, where=where, describe=describe))

    def wait_for(self, task: Task | str, *, timeout: float | None = None) -> Task:
        """Return another of the caller's tasks when it has ended."""
        return self._wait(self._turn.wait_for(task, timeout=timeout))

    def other_tasks(self, limit: int = 20) -> tuple[Task, ...]:
        """Return the other tasks of this context, the last updated first."""
        return self._wait(self._turn.other_tasks(limit))

    def working(
        self,
        content: object = None,
        *,
        metadata: dict[str, Any] | None = None,
        substate: dict[str, Any] | None = None,
    ) -> None:
        """Say how the work goes."""
        self._wait(self._turn.working(content, metadata=metadata, substate=substate))

    def artifact(self, content: object, **options: Any) -> str:
        """Make a whole artifact and return its id."""
        return self._wait(self._turn.artifact(content, **options))

    def stream(self, name: str = "", **options: Any) -> AbstractContextManager[BlockingStream]:
        """Return an artifact to be written chunk by chunk: ``with turn.stream() as out``."""
        return self._streaming(name, options)

    @contextmanager
    def _streaming(self, name: str, options: dict[str, Any]) -> Iterator[BlockingStream]:
        async def opened() -> ArtifactStream:
            return await self._turn.stream(name, **options).__aenter__()

        async def left(stream: ArtifactStream, error: BaseException | None) -> None:
            await stream.__aexit__(type(error) if error else None, error, None)

        stream = self._wait(opened())
        try:
            yield BlockingStream(stream, self._wait)
        except BaseException as error:
            self._wait(left(stream, error))
            raise
        self._wait(left(stream, None))

    def ask(self, question: object, *, key: str | None = None) -> Answer:
        """Ask the caller, and return the message that answers."""
        return self._wait(self._turn.ask(question, key=key))

    def require_auth(self, content: object, *, key: str | None = None) -> Answer:
        """Ask the caller to authorise something, and return the message that says so."""
        answer: Answer = self._wait(self._turn.require_auth(content, key=key))
        return answer

    @overload
    def step(
        self, key: str, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    def step(self, key: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, key: str, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Do something once in the life of the task, and return its result."""
        return self._wait(self._turn.step(key, function, *args, **kwargs))

    def reject(self, why: object) -> NoReturn:
        """End the task as REJECTED."""
        self._turn.reject(why)

    def fail(self, why: object) -> NoReturn:
        """End the task as FAILED, with a reason that the caller may read."""
        self._turn.fail(why)

    def messages(self) -> Iterator[Message]:
        """Yield messages to this task as they arrive while the turn runs."""
        while True:
            yield self._wait(self._turn.run.next_message())

    def history(self, limit: int = 50) -> Sequence[Message]:
        """Return the last messages of this context, the oldest first."""
        return self._wait(self._turn.history(limit))

    def recall(self, key: str, default: Any = None) -> Any:
        """Return what ``remember`` kept in this context under ``key``."""
        return self._wait(self._turn.recall(key, default))

    def update(self, key: str, function: Callable[[Any], R], default: Any = None) -> R:
        """Change what this context keeps under ``key`` in one step, and return what it is then.

        ``function`` runs in this thread. Raises ``RuntimeError`` inside the function of an update.
        """
        asked: SimpleQueue[tuple[Any, asyncio.Future[Any]] | None] = SimpleQueue()

        async def here(_: Callable[[Any], Any], value: Any) -> Any:
            answer = self._loop.create_future()
            asked.put((value, answer))
            result, error = await answer
            if error is not None:
                raise error
            return result

        if outer := _UPDATING.get():
            # Two turns that update two keys, each inside the other, would wait for each other.
            raise RuntimeError(
                f"the function that updates {outer!r} updates {key!r}: "
                + ("return it" if key == outer else "do one after the other")
            )
        context = self._turn._context
        updating: Future[R] = self._begin(context.update(key, function, default, call=here))
        updating.add_done_callback(lambda _: asked.put(None))
        try:
            while (each := asked.get()) is not None:
                value, answer = each
                result, error = None, None
                mark = _UPDATING.set(key)
                try:
                    result = function(value)
                except Exception as raised:
                    error = raised
                finally:
                    _UPDATING.reset(mark)
                self._loop.call_soon_threadsafe(_settle, answer, (result, error))
        except BaseException:
            updating.cancel()
            raise
        return updating.result()

    def remember(self, key: str, value: Any) -> None:
        """Keep a JSON value in this context; ``None`` removes it."""
        self._wait(self._turn.remember(key, value))
