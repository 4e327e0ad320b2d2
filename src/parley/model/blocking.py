"""Blocking methods for threads, made from the async methods of an object (see
``client/sync.py``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class CallThread(Protocol):
    """Runs coroutines on a loop, for another thread."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` and return its result."""


class SyncProxy(Generic[A]):
    """An async object, and the thread that runs its methods on its loop."""

    def __init__(self, target: A, thread: CallThread) -> None:
        self._target = target
        self._thread = thread

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a ``SyncProxy`` that runs a coroutine method and waits for its result."""

    @wraps(method)
    def call(self: SyncProxy[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._target, *args, **kwargs))

    call.__doc__ = _without_async(method)
    return call


def wrapping(
    method: Callable[Concatenate[Any, P], A], proxy: Callable[[Any, A], T]
) -> Callable[Concatenate[Any, P], T]:
    """Return a method of a ``SyncProxy`` whose async result is wrapped in a blocking ``proxy``."""

    @wraps(method)
    def call(self: SyncProxy[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def made() -> A:
            return method(self._target, *args, **kwargs)

        return proxy(self, self._run(made()))

    call.__doc__ = _without_async(method)
    return call


def _without_async(method: Callable[..., Any]) -> str:
    return _CODE.sub(lambda code: _ASYNC.sub("", code[0]), method.__doc__ or "")


_CODE = re.compile("``[^`]+``")
_ASYNC = re.compile(r"\b(?:async|await) ")
