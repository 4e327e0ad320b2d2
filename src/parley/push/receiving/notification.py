"""What a handler gets: one event of a task, and the way to the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.wire.json.syntax import without_bom


class PushNotification:
    """A notification that was delivered and verified.

    ``event`` is a ``Task``, a ``TaskStatusUpdateEvent``, a ``TaskArtifactUpdateEvent`` or a
    ``Message``; a 0.3 agent sends the whole ``Task`` each time. ``id`` is the id of the delivery,
    the same when it comes again, or empty if the sender gives none. ``version`` is that of the
    protocol; ``sent_at`` the time of the attempt in seconds since 1970, if the sender says it;
    ``verified_by`` the scheme that proved the sender, empty with ``verify=False``.
    """

    __slots__ = ("_fetch", "_loop", "body", "event", "id", "sent_at", "verified_by", "version")

    def __init__(
        self,
        event: Event,
        *,
        id: str = "",
        version: str = "1.0",
        sent_at: int | None = None,
        verified_by: str = "",
        body: bytes = b"",
        fetch: Callable[[str], Awaitable[Task]] | None = None,
    ) -> None:
        self.event = event
        self.id = id
        self.version = version
        self.sent_at = sent_at
        self.verified_by = verified_by
        self.body = body
        self._fetch = fetch
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"PushNotification(id={self.id!r}, event={self.event!r})"

    @property
    def task_id(self) -> str:
        """The id of the task; empty for a direct message."""
        return task_id_of(self.event)

    @property
    def context_id(self) -> str:
        """The id of the context."""
        return self.event.context_id

    @property
    def is_final(self) -> bool:
        """Whether the task has ended with this event."""
        event = self.event
        return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal

    @property
    def number(self) -> int | None:
        """The number of the event in the task's log, if the id of the delivery says it."""
        return number_of(self.id)[1]

    async def task(self) -> Task:
        """Fetch the task from the agent, as it is now.

        Raises ``ValueError`` for a direct message and for a receiver without ``agent=``; else what
        ``RemoteAgent.get`` raises.
        """
        if not self.task_id:
            raise ValueError("a direct message has no task")
        if self._fetch is None:
            raise ValueError(
                "the receiver knows no agent to fetch tasks from: give it "
                "agent=lambda: parley.connect(url, ...)"
            )
        return await self._fetch(self.task_id)

    def task_sync(self) -> Task:
        """Fetch the task, in a handler that is a plain function."""
        if self._loop is None:
            raise RuntimeError("task_sync() is for handlers that are plain functions; await task()")
        return asyncio.run_coroutine_threadsafe(self.task(), self._loop).result()

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let ``task_sync`` use an event loop: the handler runs in a thread."""
        self._loop = loop


def task_id_of(event: Event) -> str:
    """Return the id of an event's task, empty for a message that has none."""
    return event.id if isinstance(event, Task) else event.task_id


def lane_of(event: Event, id: str) -> str:
    """Return what notifications are ordered by: their task, else their context."""
    return task_id_of(event) or event.context_id or id


def number_of(id: str) -> tuple[str, int | None]:
    """Return what comes before the number at the end of an id, and the number."""
    prefix, slash, number = id.rpartition("/")
    if slash and number.isascii() and number.isdecimal() and len(number) <= 18:
        return prefix, int(number)
    return id, None


class _Body(msgspec.Struct):
    """The members that tell the versions apart."""

    kind: Any = None
    task: Any = None
    message: Any = None
    statusUpdate: Any = None
    artifactUpdate: Any = None

    @property
    def version(self) -> str:
        is_0_3 = self.kind is not None or (
            self.task is None
            and self.message is None
            and self.statusUpdate is None
            and self.artifactUpdate is None
        )
        return "0.3" if is_0_3 else "1.0"


def read_event(body: bytes) -> tuple[Event, str]:
    """Return the event in a body, and the version that it is written in.

    It is told by the body, as senders exist that do not say it. Raises ``ValueError``.
    """
    from parley.model.errors import A2AError
    from parley.wire import versions

    body = without_bom(body)
    try:
        version = msgspec.json.decode(body, type=_Body).version
        return versions.dialect(version).jsonrpc.read_event(body), version
    except (A2AError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no event: {str(error)[:300]}") from None
