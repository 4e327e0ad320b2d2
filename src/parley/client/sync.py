"""The blocking client, for scripts, notebooks and threads: the async client on its own thread."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from parley.client.answer import Answer
from parley.client.calls.stream_reader import EventStream
from parley.client.card.trust import CardCheck
from parley.client.connection import connect
from parley.client.errors import ConnectionClosed
from parley.client.files.stream import FileStream, Progress
from parley.client.message import MessageOptions, Sendable
from parley.client.push import RemotePushConfigs
from parley.client.remote_agent import RemoteAgent, SkillFunction
from parley.model.blocking import SyncProxy, blocking, wrapping
from parley.model.cards import AgentCard, AgentInterface
from parley.model.parts import MAX_READ, Artifact, Message, Part
from parley.model.tasks import Event, Task, TaskState

P = ParamSpec("P")
T = TypeVar("T")

# Seconds between checks of a blocked call; Windows handles Ctrl-C only between waits.
_CHECK_INTERVAL = 0.5


class LoopThread:
    """An event loop on its own thread. ``on_close`` runs before it ends."""

    def __init__(self) -> None:
        self.on_close: Callable[[], Awaitable[None]] | None = None
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
        if self.on_close is not None:
            await self.on_close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` and return its result. Interrupting the wait cancels it."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call would wait for its own thread; use parley.connect")
        with self._lock:
            if self._closed or self._loop is None:
                coroutine.close()
                raise ConnectionClosed("this connection was closed; open a new one")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], timeout=_CHECK_INTERVAL).done:
                if not self._thread.is_alive():
                    raise ConnectionClosed("the connection was closed during the call")
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionClosed("the connection was closed during the call") from None
        finally:
            future.cancel()

    def close(self) -> None:
        """End pending calls, the loop and its thread. Idempotent."""
        with self._lock:
            if not self._closed and self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
            self._closed = True
        # The garbage collector may call this on any thread, including the loop's.
        if threading.current_thread() is not self._thread:
            self._thread.join()


_END: Any = object()


async def _next_or_end(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return cast("T", _END)


class SyncIterator(Generic[T]):
    """Items from a remote agent for a ``for`` loop. Close it if you leave the loop early."""

    def __init__(self, owner: SyncProxy[Any], items: AsyncIterator[T]) -> None:
        self._owner = owner  # keeps the agent from being collected first
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        item = self._owner._run(_next_or_end(self._items))
        if item is _END:
            raise StopIteration
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading. Idempotent; the task continues."""
        with suppress(ConnectionClosed):
            self._owner._run(cast("Any", self._items).aclose())


class SyncEventStream(SyncIterator[Event]):
    """The events of a message or a task, for a ``for`` loop: see ``EventStream``."""

    def __init__(self, owner: SyncProxy[Any], items: EventStream) -> None:
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
        """The last known state of the task."""
        return self._stream.state

    @property
    def seq(self) -> int | None:
        """The number of the last event, if the agent numbers them."""
        return self._stream.seq

    @property
    def is_settled(self) -> bool:
        """True if the task has ended or waits for its caller, by the events so far."""
        return self._stream.is_settled

    @property
    def before(self) -> Task | None:
        """The task before a message continued it, once the stream has begun."""
        return self._stream.before


class SyncFileStream(SyncIterator[bytes]):
    """The bytes of a file, for a ``for`` loop: see ``FileStream``."""

    def __init__(self, owner: SyncProxy[Any], stream: FileStream) -> None:
        super().__init__(owner, stream)
        self._stream = stream

    @property
    def filename(self) -> str:
        """The sender's name for the file. It is not safe as a path."""
        return self._stream.filename

    @property
    def media_type(self) -> str:
        """The media type of the file."""
        return self._stream.media_type

    @property
    def size(self) -> int | None:
        """The number of bytes, if known; inside ``with`` the server has been asked."""
        return self._stream.size

    def __enter__(self) -> Self:
        self._owner._run(self._stream.__aenter__())
        return self

    def read(self, *, limit: int = MAX_READ) -> bytes:
        """Return all bytes. Raises ``FileLimitExceeded`` for more than ``limit``."""
        return self._owner._run(self._stream.read(limit=limit))

    def save(self, path: str | Path) -> Path:
        """Write the bytes to a file at ``path``, and return the path."""
        return self._owner._run(self._stream.save(path))


class SyncSkillFunction(Generic[T]):
    """A skill of a remote agent as a function that blocks: see ``RemoteAgent.skill``."""

    def __init__(self, owner: SyncProxy[Any], function: SkillFunction[T]) -> None:
        self._owner = owner
        self._function = function

    def __call__(self, message: Sendable | None = None, /, **arguments: Any) -> T:
        """Call the skill, and return its result."""
        return self._owner._run(self._function(message, **arguments))


class SyncRemotePushConfigs(SyncProxy[RemotePushConfigs]):
    """``RemotePushConfigs`` with blocking methods."""

    def __init__(self, agent: SyncRemoteAgent) -> None:
        super().__init__(agent._target.push, agent._thread)
        self._agent = agent  # keeps the agent from being collected first

    create = blocking(RemotePushConfigs.create)
    get = blocking(RemotePushConfigs.get)
    page = blocking(RemotePushConfigs.page)
    list = wrapping(RemotePushConfigs.list, SyncIterator)
    set_events = blocking(RemotePushConfigs.set_events)
    history = blocking(RemotePushConfigs.history)
    delete = blocking(RemotePushConfigs.delete)


class SyncRemoteAgent(SyncProxy[RemoteAgent]):
    """``RemoteAgent`` with blocking methods; made by ``connect_sync``. Use it from any thread.

    The methods have ``RemoteAgent``'s signatures; streams are iterators.
    """

    def __init__(self, thread: LoopThread, agent: RemoteAgent) -> None:
        super().__init__(agent, thread)
        thread.on_close = agent.aclose
        # Closes the connection at garbage collection or interpreter exit if the user does not.
        self._close = weakref.finalize(self, thread.close)

    stream = wrapping(RemoteAgent.stream, SyncEventStream)
    get = blocking(RemoteAgent.get)
    list = blocking(RemoteAgent.list)
    tasks = wrapping(RemoteAgent.tasks, SyncIterator)
    cancel = blocking(RemoteAgent.cancel)
    subscribe = wrapping(RemoteAgent.subscribe, SyncEventStream)
    authorize = blocking(RemoteAgent.authorize)
    upload = blocking(RemoteAgent.upload)
    read = blocking(RemoteAgent.read)
    call = blocking(RemoteAgent.call)
    refresh_card = blocking(RemoteAgent.refresh_card)
    extended_card = blocking(RemoteAgent.extended_card)
    open = wrapping(RemoteAgent.open, SyncFileStream)
    if TYPE_CHECKING:

        @overload
        def send(
            self,
            message: Sendable | None = None,
            *,
            returns: type[T],
            return_immediately: bool = False,
            timeout: float | None = None,
            **options: Unpack[MessageOptions],
        ) -> Answer[T]: ...

        @overload
        def send(
            self,
            message: Sendable | None = None,
            *,
            returns: object = None,
            return_immediately: bool = False,
            timeout: float | None = None,
            **options: Unpack[MessageOptions],
        ) -> Answer[Any]: ...

        def send(self, message: Any = None, **options: Any) -> Answer[Any]:
            """Send a message and return the answer: see ``RemoteAgent.send``."""
            ...

        @overload
        def wait(
            self,
            task: str | Task | Answer[Any],
            *,
            returns: type[T],
            poll: float | None = None,
            timeout: float | None = None,
            history_length: int | None = None,
        ) -> Answer[T]: ...

        @overload
        def wait(
            self,
            task: str | Task | Answer[Any],
            *,
            returns: object = None,
            poll: float | None = None,
            timeout: float | None = None,
            history_length: int | None = None,
        ) -> Answer[Any]: ...

        def wait(self, task: Any, **options: Any) -> Answer[Any]:
            """Return the answer when the task has ended or waits: see ``RemoteAgent.wait``."""
            ...

        @overload
        def skill(
            self, skill: str, *, returns: type[T], **options: Any
        ) -> SyncSkillFunction[T]: ...

        @overload
        def skill(
            self, skill: str, *, returns: object = None, **options: Any
        ) -> SyncSkillFunction[Any]: ...

        def skill(self, skill: str, **options: Any) -> SyncSkillFunction[Any]:
            """Return a skill as a function that blocks: see ``RemoteAgent.skill``."""
            ...

        @overload
        def download(
            self, source: Part, to: str | Path | None = None, *, progress: Progress | None = None
        ) -> Path: ...

        @overload
        def download(
            self,
            source: Artifact | Message | Task | Answer[Any],
            to: str | Path | None = None,
            *,
            progress: Progress | None = None,
        ) -> builtins.list[Path]: ...

        def download(self, source: Any, to: Any = None, *, progress: Any = None) -> Any:
            """Write files to disk: see ``RemoteAgent.download``."""
            ...

    else:
        send = blocking(RemoteAgent.send)
        wait = blocking(RemoteAgent.wait)
        skill = wrapping(RemoteAgent.skill, SyncSkillFunction)
        download = blocking(RemoteAgent.download)

    @property
    def push(self) -> SyncRemotePushConfigs:
        """The push notification configurations of tasks."""
        return SyncRemotePushConfigs(self)

    @property
    def card(self) -> AgentCard:
        """The agent's card, or its extended card after ``extended_card``."""
        return self._target.card

    @property
    def card_json(self) -> bytes:
        """The card's JSON."""
        return self._target.card_json

    @property
    def card_trust(self) -> CardCheck:
        """The verdict on the signatures of the card."""
        return self._target.card_trust

    @property
    def interface(self) -> AgentInterface:
        """The interface in use."""
        return self._target.interface

    @property
    def skipped_interfaces(self) -> tuple[AgentInterface, ...]:
        """The interfaces that are not called, since their origins may not get the credentials."""
        return self._target.skipped_interfaces

    @property
    def has_credentials(self) -> bool:
        """True if there are credentials from ``auth``, a login or the environment."""
        return self._target.has_credentials

    @property
    def inline_bytes(self) -> int | None:
        """The maximum size of files in messages that the agent prefers; larger files are
        uploaded."""
        return self._target.inline_bytes

    @property
    def version(self) -> str:
        """The protocol version in use."""
        return self._target.version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Idempotent."""
        self._close()


def in_thread(
    function: Callable[..., Awaitable[RemoteAgent]], *args: Any, **options: Any
) -> SyncRemoteAgent:
    """Connect on a separate thread, with the result of ``function`` for these arguments."""
    thread = LoopThread()

    async def opened() -> RemoteAgent:
        return await function(*args, **options)

    try:
        return SyncRemoteAgent(thread, thread.run(opened()))
    except BaseException:
        thread.close()
        raise


def run_in_thread(function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a loop and thread of its own, and return its result."""
    thread = LoopThread()
    try:
        return thread.run(function())
    finally:
        thread.close()


SYNC_DOC = (
    "Connect to an agent for blocking calls, at once, with the options of ``connect``.\n\n"
    "Use the result in a ``with`` block, or close it."
)


def _with_signature_of(
    function: Callable[P, Any], run: Callable[..., SyncRemoteAgent]
) -> Callable[P, SyncRemoteAgent]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> SyncRemoteAgent:
        return run(*args, **kwargs)

    call.__name__ = call.__qualname__ = "connect_sync"
    call.__doc__ = SYNC_DOC
    return call


connect_sync = _with_signature_of(connect, partial(in_thread, connect))
