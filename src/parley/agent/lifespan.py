"""An agent's lifespan, entered before turns run and left after them: ``Agent(lifespan=...)``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("parley.agent")

CANCEL_SECONDS = 5.0
"""The time for a cancelled lifespan to close its resources."""

_EXAMPLE = "decorate an async generator function with @contextlib.asynccontextmanager"


class LifespanFailed(RuntimeError):
    """A lifespan raised an exception, its cause. The agent is not served without its lifespan."""


class Lifespan:
    """One agent's lifespan, entered and left in the same asyncio task.

    Some resources must be closed by the task that opened them: a task group, a cancel scope.
    """

    def __init__(
        self, name: str, function: Callable[[Any], AbstractAsyncContextManager[Any]], agent: Any
    ) -> None:
        self._name = name
        self._function = function
        self._agent = agent
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._is_entered = False
        self._value: Any = None

    @property
    def value(self) -> Any:
        """The value of the context manager. Raises ``RuntimeError`` while it is not entered."""
        if not self._is_entered:
            raise RuntimeError(
                f"the lifespan of the agent {self._name!r} has ended, and its value is closed"
            )
        return self._value

    async def enter(self) -> None:
        """Enter the context manager. A cancellation of this call cancels the author's code too.

        Raises ``LifespanFailed``.
        """
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._run(entered))
        try:
            await asyncio.wait({self._task, entered}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        if not entered.done():
            await self._task

    async def leave(self) -> None:
        """Leave the context manager. A cancellation of this call cancels the author's code too.

        Raises ``LifespanFailed``.
        """
        assert self._task is not None
        self._leave.set()
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            await self._cancel()
            raise
        await self._task

    async def _run(self, entered: asyncio.Future[None]) -> None:
        agent = f"the agent {self._name!r}"
        said = f"{agent} cannot start: its lifespan function {{}} failed"
        try:
            made = self._function(self._agent)
            if not hasattr(type(made), "__aenter__"):
                raise TypeError(f"it returned {made!r:.100}, no async context manager; {_EXAMPLE}")
            async with made as self._value:
                self._is_entered = True
                entered.set_result(None)
                said = f"the lifespan function {{}} of {agent} ended while the agent was served"
                await self._leave.wait()
                said = f"{agent} did not close all: its lifespan function {{}} failed at its end"
        except Exception as error:
            failure = f"{said.format(_place(self._function, error))}: {_named(error)}"
            if not self._leave.is_set() and self._is_entered:
                log.exception("%s", failure)
            raise LifespanFailed(failure) from error
        finally:
            self._is_entered, self._value = False, None

    async def _cancel(self) -> None:
        """Cancel the author's code, and give it some time to close its resources."""
        task = self._task
        assert task is not None
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=CANCEL_SECONDS)
        if pending:
            log.warning("the lifespan of the agent %r ignores its cancellation", self._name)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s", error, exc_info=error)


def _place(function: Any, error: Exception) -> str:
    """Return the name of an author's function, its file, and the line that raised."""
    plain = inspect.unwrap(function)
    name = getattr(plain, "__name__", type(plain).__name__)
    code = getattr(plain, "__code__", None)
    if code is None:
        return name
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == code.co_filename
    ]
    path = Path(code.co_filename)
    with suppress(ValueError, OSError):
        path = path.relative_to(Path.cwd())
    return f"{name} ({path}, line {lines[-1] if lines else code.co_firstlineno})"


def _named(error: Exception) -> str:
    if isinstance(error, RuntimeError) and str(error) == "generator didn't yield":
        return "it ended without a yield, during which the agent would be served"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def checked_lifespan(function: object) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that can be entered. Raises ``TypeError`` with the right form."""
    is_manager = isinstance(function, AbstractAsyncContextManager)  # some managers are callable
    if is_manager or not callable(function):
        raise TypeError(
            "lifespan is a function that takes the agent and returns an async context manager, "
            f"not {function!r}; {_EXAMPLE}"
        )
    name = getattr(function, "__name__", repr(function))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"the lifespan {name} is a generator function; {_EXAMPLE}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"the lifespan {name} is a coroutine function, without a yield; {_EXAMPLE}")
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise TypeError(f"the lifespan {name} takes one argument, the agent: {error}") from None
    except ValueError:  # a callable of an extension module has no signature
        pass
    return function
