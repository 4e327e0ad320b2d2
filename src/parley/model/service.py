"""``A2AService``: the interface between callers and agents (specification §3.1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from parley.model.cards import AgentCard
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message
from parley.model.struct import A2AStruct, Timestamp
from parley.model.tasks import Event, Task

_SEPARATOR = "\x1f"
"""The separator between issuer and id, which cannot contain it (``ids.may_be_name``)."""

_GROUP = _SEPARATOR * 2
"""The prefix of the owner keys of groups of callers."""


class Caller(msgspec.Struct, frozen=True):
    """The identity of a caller.

    ``id`` and ``issuer`` together identify a caller: "bob" from two issuers is two callers.
    ``issuer`` is the issuer or the security scheme that authenticated the id; it may be empty on a
    server with one scheme. ``authenticated`` is false for an unproved id: an unauthenticated "bob"
    is yet another caller. ``claims`` are the further claims of the credential.

    ``id`` is the user, or the client application if there is no user. ``client`` is the id of the
    application that sends the request, if known (``azp``, ``client_id``), and ``actors`` are the
    parties that act for the user, the current one first (``act``, RFC 8693 §4.1). ``scopes`` are
    the scopes of the caller's credentials; ``granted`` has them by security scheme, together with
    the scopes of the application.
    """

    id: str = ""
    authenticated: bool = False
    claims: dict[str, object] = {}
    issuer: str = ""
    client: str = ""
    actors: tuple[str, ...] = ()
    scopes: frozenset[str] = frozenset()
    granted: Mapping[Any, frozenset[str]] = {}

    @property
    def is_application(self) -> bool:
        """True if the caller is an application that acts for itself."""
        return bool(self.client) and self.client == self.id

    @property
    def owner(self) -> str:
        """The owner key of the caller's objects in the store: tasks, contexts, receipts.

        Different callers have different keys, and so have an application and a user with the same
        id. A caller without an id has an empty key.
        """
        if not self.id:
            return ""
        name = owned_by(self.issuer) + self.id if self.issuer else self.id
        if not self.authenticated:
            return _SEPARATOR + name
        return name + _SEPARATOR if self.client == self.id else name


ANONYMOUS = Caller()


def owned_by(issuer: str) -> str:
    """Return the prefix of the owner keys of an issuer's authenticated callers."""
    return issuer + _SEPARATOR


def group_key(*parts: str) -> str:
    """Return the owner key of a group of callers. Its first part is the kind of group.

    Parts contain no control characters (``ids.may_be_name``). The key differs from the ``owner`` of
    every single caller, in which a non-empty issuer or id follows the first separator.
    """
    return _GROUP + _SEPARATOR.join(parts)


def caller_of(owner: str) -> Caller:
    """Return the caller with this ``owner``, without claims; the anonymous caller for a group."""
    if not owner or owner.startswith(_GROUP):
        return ANONYMOUS
    name = owner.removesuffix(_SEPARATOR)
    issuer, _, id = name.removeprefix(_SEPARATOR).rpartition(_SEPARATOR)
    return Caller(
        id=id,
        issuer=issuer,
        authenticated=not owner.startswith(_SEPARATOR),
        client="" if name == owner else id,
    )


class TraceContext(A2AStruct, frozen=True, kw_only=True):
    """The position in a trace, and its ``baggage``, as in the headers of W3C.

    The object is falsy if all are empty. Baggage can come without a trace.
    """

    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""

    def __bool__(self) -> bool:
        return bool(self.traceparent or self.baggage)

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hexadecimal digits; empty without a trace."""
        return self.traceparent[3:35]

    @property
    def headers(self) -> dict[str, str]:
        """The headers for a request of the trace; empty without a trace and baggage."""
        headers = {
            "traceparent": self.traceparent,
            "tracestate": self.tracestate,
            "baggage": self.baggage,
        }
        return {name: value for name, value in headers.items() if value}


NO_TRACE = TraceContext()


class Once(Protocol):
    """Names that can each be claimed once, over all replicas of an agent and over restarts."""

    async def take(self, extension: str, name: str, until: int) -> bool:
        """Claim a name of an extension (its URI). Return ``False`` if it was claimed already.

        The claim lasts until a time (ms since 1970), and a minute longer. Raises
        ``OverloadedError`` while the store is unavailable.
        """
        ...


class Observation(Protocol):
    """The observation of a request, for its operator.

    The service adds its ``skill`` to ``facts``, unless they are ``None``. A refusal of a stream
    before its first step must ``end`` the observation, as the stream itself never begins.
    """

    facts: dict[str, Any] | None

    def end(self, error: BaseException | None = None) -> None:
        """End the observation, which an ``error`` may have ended."""
        ...


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a request: its sender, its extensions, and its limits.

    ``extensions`` are the URIs of the active extensions: requested by the caller, and supported by
    the agent. ``last_event_id`` is the number of the last event that the caller has received.
    ``trace`` is the trace of the request: on a server the received trace if it is valid, on a
    client the trace to send. ``reply_timeout`` is the number of seconds that the caller waits for
    the end of a task, if the binding has a deadline. ``address`` is the sender's address, if limits
    need it. ``base_url`` is the agent's address as the sender sees it, without a trailing slash;
    empty if the request carries none (gRPC). ``deadline`` is the time after which the answer is
    useless, if the binding has one: it is combined with the chain's deadline. ``sender`` is the
    name that a caller without an id gives itself: its message ids are separate from those ids of
    other such callers. ``once`` is for the ``receive`` hooks of extensions, elsewhere ``None``.
    ``observed`` is the observation of the request, ``None`` if nothing observes it.
    """

    caller: Caller = ANONYMOUS
    tenant: str = ""
    version: str = "1.0"
    extensions: frozenset[str] = frozenset()
    last_event_id: str | None = None
    trace: TraceContext = NO_TRACE
    reply_timeout: float | None = None
    address: str = ""
    base_url: str = ""
    deadline: Timestamp | None = None
    sender: str = ""
    once: Once | None = None
    observed: Observation | None = None


class StreamItem(NamedTuple):
    """An event of a stream.

    ``seq`` is its number in the task's log; ``None`` if the agent has no numbers, and for a direct
    message. ``json`` is the event's canonical JSON, if known.
    """

    event: Event
    seq: int | None = None
    json: bytes | None = None


Batches = AsyncGenerator[Sequence[StreamItem], None]
"""The items of a stream in batches, which are never empty."""


class ItemStream:
    """The items of a stream, one by one: an async iterator, to be closed like a generator.

    A reader that can use whole ``batches`` reads these instead: one step of an async generator per
    item would cost more than the item itself.
    """

    __slots__ = ("_rest", "batches")

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._rest: list[StreamItem] = []

    def __aiter__(self) -> ItemStream:
        return self

    async def __anext__(self) -> StreamItem:
        """Return the next item. Raises ``StopAsyncIteration``, and the errors of the batches."""
        if not self._rest:
            self._rest = [*reversed(await anext(self.batches))]
        return self._rest.pop()

    async def aclose(self) -> None:
        """Close the stream. Idempotent."""
        self._rest = []
        await self.batches.aclose()


class A2AService(Protocol):
    """The eleven operations of A2A 1.0 on the 1.0 data model.

    Local and remote agents, gateways and test doubles implement it; bindings call it. Methods raise
    only ``A2AError``; methods of a remote agent also raise ``ClientError`` if the agent cannot be
    reached. A streaming method is an async generator: its first step raises errors that are known
    before the first event, and closing it never ends the task.
    """

    async def send_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> Task | Message:
        """Answer a message with a task or a direct message (§3.1.1)."""
        ...

    def send_streaming_message(
        self, request: SendMessageRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Answer a message with the events of its turn (§3.1.2)."""
        ...

    async def get_task(self, request: GetTaskRequest, context: CallContext) -> Task:
        """Return a task (§3.1.3)."""
        ...

    async def list_tasks(
        self, request: ListTasksRequest, context: CallContext
    ) -> ListTasksResponse:
        """Return a page of tasks (§3.1.4)."""
        ...

    async def cancel_task(self, request: CancelTaskRequest, context: CallContext) -> Task:
        """Cancel a task and return it (§3.1.5)."""
        ...

    def subscribe_to_task(
        self, request: SubscribeToTaskRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Follow a task (§3.1.6)."""
        ...

    async def create_task_push_notification_config(
        self, request: TaskPushNotificationConfig, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Add a webhook to a task (§3.1.7)."""
        ...

    async def get_task_push_notification_config(
        self, request: GetTaskPushNotificationConfigRequest, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return a webhook of a task (§3.1.8)."""
        ...

    async def list_task_push_notification_configs(
        self, request: ListTaskPushNotificationConfigsRequest, context: CallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return the webhooks of a task (§3.1.9)."""
        ...

    async def delete_task_push_notification_config(
        self, request: DeleteTaskPushNotificationConfigRequest, context: CallContext
    ) -> Empty:
        """Remove a webhook (§3.1.10)."""
        ...

    async def get_extended_agent_card(
        self, request: GetExtendedAgentCardRequest, context: CallContext
    ) -> AgentCard:
        """Return the card for authenticated callers (§3.1.11)."""
        ...
