"""What a forgotten ``await`` or ``async with`` leads to: an error that says what is missing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Unopened:
    """A connection that is to be opened: it has nothing of what it opens."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a connection has no {name!r} before it is open: write "
                f"`async with ... as agent`, and use agent.{name}",
                name=name,
                obj=self,
            )


class PendingCall(Coroutine[Any, Any, T]):
    """The coroutine of a call, which has nothing of the call's answer."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], name: str) -> None:
        self._coroutine = coroutine
        self._name = name

    def __await__(self) -> Generator[Any, None, T]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """Resume the call."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the call."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the call."""
        self._coroutine.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("cr_", "__")):
                return getattr(self._coroutine, name)
            raise AttributeError(
                f"{self._name}() was not awaited: write (await agent.{self._name}(...)).{name}",
                name=name,
                obj=self,
            )


def awaited(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a method's coroutine say what is missing, if it is taken for the answer."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        return PendingCall(method(*args, **options), method.__name__)

    return call
