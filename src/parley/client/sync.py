"""The client for code that does not await: scripts, notebooks, threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from parley.client.calls.stream import EventStream
from parley.client.connection import connect
from parley.client.errors import ConnectionClosed
from parley.client.push import PushConfigs
from parley.client.remote_agent import RemoteAgent
from parley.model.cards import AgentCard, AgentInterface
from parley.model.tasks import Event, Task, TaskState

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

# How long a wait goes on before it looks whether it still makes sense; Windows takes Ctrl-C then.
_GLANCE = 0.5


class _LoopThread:
    """An event loop on a thread of its own, until it is closed; ``at_end`` runs last."""

    def __init__(self) -> None:
        self.at_end: Callable[[], Awaitable[None]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="parley-client", daemon=True
        )
        self._thread.start()
        self._ready.wait()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        if self.at_end is not None:
            await self.at_end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what ``coroutine`` returns. Interrupting the wait cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call would wait for its own thread; use parley.connect")
        with self._lock:
            if self._closed or self._loop is None:
                coroutine.close()
                raise ConnectionClosed("this connection was closed; open a new one")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], timeout=_GLANCE).done:
                if not self._thread.is_alive():
                    raise ConnectionClosed("the connection was closed during the call")
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionClosed("the connection was closed during the call") from None
        finally:
            future.cancel()

    def close(self) -> None:
        """End what is under way, the loop and its thread. Idempotent."""
        with self._lock:
            if not self._closed and self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._closed = True
        # The garbage collector may call this on any thread, this one included.
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _Twin(Generic[A]):
    """Something asynchronous, and the loop that its methods are run on."""

    def __init__(self, twin: A, thread: _LoopThread) -> None:
        self._twin = twin
        self._thread = thread

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)


_END: Any = object()


async def _step(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return cast("T", _END)


class SyncIterator(Generic[T]):
    """Items that come from a remote agent, for a ``for`` loop. Close it if you leave early."""

    def __init__(self, owner: _Twin[Any], items: AsyncIterator[T]) -> None:
        self._owner = owner  # which must not be collected before
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._owner._run(_step(self._items))
        if item is _END:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. Idempotent; the task goes on."""
        with suppress(ConnectionClosed):
            self._owner._run(cast("Any", self._items).aclose())


class SyncEventStream(SyncIterator[Event]):
    """The events of a message or a task, for a ``for`` loop: see ``EventStream``."""

    def __init__(self, owner: _Twin[Any], items: EventStream) -> None:
        super().__init__(owner, items)
        self._stream = items

    @property
    def task_id(self) -> str:
        """The id of the task, empty until it is known."""
        return self._stream.task_id

    @property
    def context_id(self) -> str:
        """The id of the context, empty until it is known."""
        return self._stream.context_id

    @property
    def state(self) -> TaskState | None:
        """The state that the task was last seen in."""
        return self._stream.state

    @property
    def seq(self) -> int | None:
        """The number of the last event, where the agent numbers them."""
        return self._stream.seq

    @property
    def is_settled(self) -> bool:
        """Whether the task has ended or waits for its caller, by the events that came so far."""
        return self._stream.is_settled

    @property
    def before(self) -> Task | None:
        """The task as it stood when a message continued it, once the stream has begun."""
        return self._stream.before


def _call(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Twin[A], P], T]:
    @wraps(method)
    def call(self: _Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._twin, *args, **kwargs))

    return call


def _stream(
    method: Callable[Concatenate[A, P], EventStream],
) -> Callable[Concatenate[_Twin[A], P], SyncEventStream]:
    @wraps(method)
    def call(self: _Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> SyncEventStream:
        return SyncEventStream(self, method(self._twin, *args, **kwargs))

    return call


def _iterate(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[_Twin[A], P], SyncIterator[T]]:
    @wraps(method)
    def call(self: _Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> SyncIterator[T]:
        return SyncIterator(self, method(self._twin, *args, **kwargs))

    return call


class SyncPushConfigs(_Twin[PushConfigs]):
    """``PushConfigs`` with blocking methods."""

    def __init__(self, agent: SyncRemoteAgent) -> None:
        super().__init__(agent._twin.push, agent._thread)
        self._agent = agent  # which must not be collected before

    create = _call(PushConfigs.create)
    get = _call(PushConfigs.get)
    page = _call(PushConfigs.page)
    list = _iterate(PushConfigs.list)
    delete = _call(PushConfigs.delete)


class SyncRemoteAgent(_Twin[RemoteAgent]):
    """``RemoteAgent`` with blocking methods; made by ``connect_sync``. Use it from any thread.

    The methods take and return what those of ``RemoteAgent`` do; streams are iterators.
    """

    def __init__(self, thread: _LoopThread, agent: RemoteAgent) -> None:
        super().__init__(agent, thread)
        thread.at_end = agent.aclose
        # Also when it is forgotten, as in a notebook, and at the end of the program.
        self._close = weakref.finalize(self, thread.close)

    send = _call(RemoteAgent.send)
    stream = _stream(RemoteAgent.stream)
    get = _call(RemoteAgent.get)
    list = _call(RemoteAgent.list)
    tasks = _iterate(RemoteAgent.tasks)
    cancel = _call(RemoteAgent.cancel)
    subscribe = _stream(RemoteAgent.subscribe)
    wait = _call(RemoteAgent.wait)
    call = _call(RemoteAgent.call)
    refresh_card = _call(RemoteAgent.refresh_card)
    extended_card = _call(RemoteAgent.extended_card)

    @property
    def push(self) -> SyncPushConfigs:
        """The webhooks that are told of tasks."""
        return SyncPushConfigs(self)

    @property
    def card(self) -> AgentCard:
        """The agent's card: as it was found, or the extended one once it was asked for."""
        return self._twin.card

    @property
    def card_json(self) -> bytes:
        """The card as it was found."""
        return self._twin.card_json

    @property
    def interface(self) -> AgentInterface:
        """The interface that is called."""
        return self._twin.interface

    @property
    def passed_over(self) -> tuple[AgentInterface, ...]:
        """The interfaces that are not called, as their origins may not have the credentials."""
        return self._twin.passed_over

    @property
    def version(self) -> str:
        """The version of the protocol that is spoken."""
        return self._twin.version

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread behind them. Idempotent."""
        self._close()


def _connect(*args: Any, **options: Any) -> SyncRemoteAgent:
    thread = _LoopThread()

    async def open_it() -> RemoteAgent:
        return await connect(*args, **options)

    try:
        return SyncRemoteAgent(thread, thread.run(open_it()))
    except BaseException:
        thread.close()
        raise


def _like(
    function: Callable[P, Any], run: Callable[..., SyncRemoteAgent]
) -> Callable[P, SyncRemoteAgent]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> SyncRemoteAgent:
        return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = "connect_sync"
    call.__doc__ = (
        "Connect to an agent for blocking calls, at once: the options are those of ``connect``.\n\n"
        "Use the result in a ``with`` block, or close it."
    )
    return call


connect_sync = _like(connect, _connect)
