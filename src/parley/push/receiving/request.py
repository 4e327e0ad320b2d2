"""One delivery as it arrived: its limits, the request, and the notification in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.wire.json.syntax import without_bom

# -- limits -----------------------------------------------------------------------------------


class ReceiverLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a receiver. Times are in seconds.

    A body has ``max_bytes`` at most, and arrives within ``body_timeout``. ``queue`` notifications
    of ``queue_bytes`` together wait or are handled; beyond that the answer is 503. ``concurrency``
    handlers run at once, each for another task. A delivery may be ``max_age`` old. An id that was
    handled is known for ``remember``. A task stays with a replica that has died for ``lease``. At
    the end, ``drain`` is how long the queue may take.

    Raises ``ValueError`` for a value out of range.
    """

    max_bytes: int = 8 * 1024 * 1024
    body_timeout: float = 30.0
    queue: int = 1000
    queue_bytes: int = 64 * 1024 * 1024
    concurrency: int = 16
    max_age: float = 300.0
    remember: float = 48 * 3600.0
    lease: float = 15.0
    drain: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least = 0 if name == "drain" else 1
            if not least <= value <= 2**40:
                raise ValueError(f"{name} is {least} or more, not {value}")
        if self.queue_bytes < self.max_bytes:
            raise ValueError("queue_bytes is max_bytes at least, or the largest body never fits")
        if self.remember < 2 * self.max_age:
            raise ValueError(
                "remember is twice max_age at least, or a delivery could be replayed when it is "
                "forgotten"
            )


DEFAULT_LIMITS = ReceiverLimits()


# -- request ----------------------------------------------------------------------------------

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"
NOTIFICATION_ID = "a2a-notification-id"
TOKENS = ("x-a2a-notification-token", "a2a-notification-token")
"""The header of a configuration's token; the official Go SDK sends it by the second name."""

VERSION = "a2a-version"

MAX_ID = 2048
"""The characters of a delivery's id."""


class NotificationRefused(Exception):
    """A delivery is not accepted. ``reason`` is for the log of the receiver, without any secret.

    ``status`` is the answer's, which does not say the reason: 401 for a proof that is missing or
    wrong, 403 for a proof that is not for here or now, 400 and others for a request of another
    form.
    """

    def __init__(self, status: int, reason: str, *, retry_after: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class DeliveredRequest(msgspec.Struct, frozen=True):
    """The headers of a delivery, by names in lower case, and its bytes. ``now`` is the time."""

    headers: Mapping[str, tuple[str, ...]]
    body: bytes
    now: float

    @classmethod
    def of(
        cls, headers: Iterable[tuple[bytes, bytes]], body: bytes, now: float
    ) -> DeliveredRequest:
        """Return a request with the headers of ASGI."""
        found: dict[str, tuple[str, ...]] = {}
        for name, value in headers:
            key = name.decode("latin-1").lower()
            found[key] = (*found.get(key, ()), value.decode("latin-1").strip(" \t"))
        return cls(found, body, now)

    def header(self, name: str) -> str:
        """Return the value of a header, empty without it.

        Raises ``NotificationRefused`` if it is there twice: another reader may take the other one.
        """
        values = self.headers.get(name, ())
        if len(values) > 1:
            raise NotificationRefused(400, f"the header {name} is there {len(values)} times")
        return values[0] if values else ""

    @property
    def id(self) -> str:
        """The id of the delivery, empty without one. Raises ``NotificationRefused``."""
        found, other = self.header(ID), self.header(NOTIFICATION_ID)
        if found and other and found != other:
            raise NotificationRefused(400, f"{ID} and {NOTIFICATION_ID} differ")
        return checked_id(found or other)

    @property
    def timestamp(self) -> int | None:
        """The time of the attempt. Raises ``NotificationRefused`` unless it is a number."""
        text = self.header(TIMESTAMP)
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 12):
            raise NotificationRefused(400, f"{TIMESTAMP} is not a number of seconds")
        return int(text)


def checked_id(id: str) -> str:
    """Return the id of a delivery. Raises ``NotificationRefused`` for one not to be logged."""
    if len(id) > MAX_ID or not id.isascii() or not id.isprintable():
        raise NotificationRefused(400, "the id of the delivery is malformed")
    return id


class Verified(msgspec.Struct, frozen=True):
    """What a proof says: which ``scheme`` it is of, and the ids that it covers, if it does.

    ``sender`` tells senders apart where several are accepted: the ids of one are none of another's.
    """

    scheme: str
    id: str = ""
    task_id: str | None = None
    sender: str = ""


# -- notification -----------------------------------------------------------------------------


class PushNotification:
    """A notification that was delivered and verified.

    ``event`` is a ``Task``, a ``TaskStatusUpdateEvent``, a ``TaskArtifactUpdateEvent`` or a
    ``Message``; a 0.3 agent sends the whole ``Task`` each time. ``id`` is the id of the delivery,
    the same when it comes again, or empty if the sender gives none. ``version`` is the
    protocol's; ``sent_at`` the time of the attempt in seconds since 1970, if the sender says it;
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
    """Return the text before the number at the end of an id, and the number."""
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

    The body decides, as some senders do not say it. Raises ``ValueError``.
    """
    from parley.model.errors import A2AError
    from parley.wire import versions

    body = without_bom(body)
    try:
        version = msgspec.json.decode(body, type=_Body).version
        return versions.dialect(version).jsonrpc.read_event(body), version
    except (A2AError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is no event: {str(error)[:300]}") from None
