"""An agent's lifespan, entered before turns run and left after them: ``Agent(lifespan=...)``."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

log = logging.getLogger("parley.agent")

CANCEL_SECONDS = 5.0
"""How long a lifespan that is cancelled may take to close what it opened."""

_EXAMPLE = "decorate an async generator function with @contextlib.asynccontextmanager"


class LifespanFailed(RuntimeError):
    """A lifespan raised an exception, which is the cause; nothing is served without it."""


class Lifespan:
    """One agent's lifespan, entered and left in a task of its own.

    Some resources have to be closed by the task that opened them: a task group, a cancel scope.
    """

    def __init__(self, name: str, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._name = name
        self._make = make
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
        """Enter the context manager; if this is cancelled, the author's code is cancelled too.

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
        """Leave the context manager; if this is cancelled, the author's code is cancelled too.

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
        did = "could not be entered"
        try:
            async with self._make() as self._value:
                self._is_entered = True
                entered.set_result(None)
                did = "ended while the agent was served"
                await self._leave.wait()
                did = "could not be left"
        except Exception as error:
            failure = f"the lifespan of the agent {self._name!r} {did}: {_named(error)}"
            if not self._leave.is_set() and self._is_entered:
                log.exception("%s", failure)
            raise LifespanFailed(failure) from error
        finally:
            self._is_entered, self._value = False, None

    async def _cancel(self) -> None:
        """Cancel the author's code, and give it a while to close what it opened."""
        task = self._task
        assert task is not None
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=CANCEL_SECONDS)
        if pending:
            log.warning("the lifespan of the agent %r ignores that it is cancelled", self._name)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s", error, exc_info=error)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def checked_lifespan(function: object) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that can be entered. Raises ``TypeError`` with what would be right."""
    is_manager = isinstance(function, AbstractAsyncContextManager)  # some of them are callable
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
    except ValueError:  # a callable without a signature, of an extension module
        pass
    return function
