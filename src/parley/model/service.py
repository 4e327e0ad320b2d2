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
"""Separates issuer and id, neither of which can contain it (``ids.may_be_name``)."""

_GROUP = _SEPARATOR * 2
"""Begins the keys of owners that are groups of callers."""


class Caller(msgspec.Struct, frozen=True):
    """The identity of a caller.

    ``id`` and ``issuer`` identify a caller: the "bob" of two issuers is two callers. ``issuer`` is
    the issuer or the security scheme that authenticated the id; a server with one scheme needs
    none. ``authenticated`` is false for an id without proof: an unauthenticated "bob" is another
    caller. ``claims`` are the further claims of the credential.

    ``id`` is the user, or the client application where no user is involved. ``client`` is the id of
    the application that sends the request, if it is known (``azp``, ``client_id``), and ``actors``
    are the parties that act for the user, the current first (``act``, RFC 8693 §4.1).
    ``scopes`` are the scopes of the caller's credentials; ``granted`` has them by security
    scheme, with the scopes of its application.
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
        """Whether the caller is an application that calls for itself."""
        return bool(self.client) and self.client == self.id

    @property
    def owner(self) -> str:
        """The key of all that the caller owns in the store: tasks, contexts, receipts.

        Different callers have different ones, an application and the user with its id too; callers
        without an id have none.
        """
        if not self.id:
            return ""
        name = owned_by(self.issuer) + self.id if self.issuer else self.id
        if not self.authenticated:
            return _SEPARATOR + name
        return name + _SEPARATOR if self.client == self.id else name


ANONYMOUS = Caller()


def owned_by(issuer: str) -> str:
    """Return the prefix of the ``owner`` of an issuer's authenticated callers."""
    return issuer + _SEPARATOR


def group_key(*parts: str) -> str:
    """Return the key of an owner that is no single caller. Its first part is the kind of owner.

    Parts contain no control characters (``ids.may_be_name``). No caller's ``owner`` begins so: what
    follows the first separator there is an issuer or an id, and neither is empty.
    """
    return _GROUP + _SEPARATOR.join(parts)


def caller_of(owner: str) -> Caller:
    """Return the caller with this ``owner``, without claims; anonymous for a group's key."""
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
    """The position in a trace: ``traceparent`` and ``tracestate``, as in the headers.

    Without a trace both are empty, and the value is false.
    """

    traceparent: str = ""
    tracestate: str = ""

    def __bool__(self) -> bool:
        return bool(self.traceparent)

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hexadecimal digits; empty without a trace."""
        return self.traceparent[3:35]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request that belongs to the trace; none without a trace."""
        headers = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in headers.items() if value}


NO_TRACE = TraceContext()


class Once(Protocol):
    """Names that are each taken once, by all replicas of an agent and over restarts."""

    async def take(self, extension: str, name: str, until: int) -> bool:
        """Take a name of an extension (its URI), and return whether it was free.

        It is taken until a time (ms since 1970), and a minute longer. Raises ``OverloadedError``
        while that cannot be told.
        """
        ...


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a request: who sent it, and how.

    ``extensions`` are the URIs of the active extensions: requested, and supported by the agent.
    ``last_event_id`` is the number of the last event that the caller has. ``trace`` is the trace
    that the request belongs to: a server has the received trace, if it is valid; a client sends it.
    ``reply_timeout`` is how many seconds the caller waits for the end of a task, if the binding has
    a deadline. ``address`` is the sender's, where limits ask for it. ``base_url`` is the
    agent's address as the sender of a message sees it, without a trailing slash; empty if the
    request carries none (gRPC). ``deadline`` is when the answer is of no more use, where the
    binding itself has one: it joins the chain's deadline. ``sender`` is how a caller without
    an id names itself: ids of its messages are its own, and no other such caller repeats them.
    ``once`` is for the ``receive`` hooks of extensions, elsewhere ``None``.
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


class StreamItem(NamedTuple):
    """One event of a stream.

    ``seq`` is its number in the task's log; ``None`` if the agent has no numbers, and for a direct
    message. ``json`` is the event's canonical JSON, if it is already known.
    """

    event: Event
    seq: int | None = None
    json: bytes | None = None


Batches = AsyncGenerator[Sequence[StreamItem], None]
"""The items that a stream has at a time. No batch is empty."""


class ItemStream:
    """The items of a stream, one by one: an async iterator, to be closed like a generator.

    They come in ``batches``, and a reader that can take a whole batch reads these instead: a step
    of an async generator for each item would cost more than the item itself.
    """

    __slots__ = ("_rest", "batches")

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._rest: list[StreamItem] = []

    def __aiter__(self) -> ItemStream:
        return self

    async def __anext__(self) -> StreamItem:
        """Return the next item. Raises ``StopAsyncIteration``, and what the batches raise."""
        if not self._rest:
            self._rest = [*reversed(await anext(self.batches))]
        return self._rest.pop()

    async def aclose(self) -> None:
        """Close the stream. Idempotent."""
        self._rest = []
        await self.batches.aclose()


class A2AService(Protocol):
    """The eleven operations of A2A 1.0 on the 1.0 data model.

    Local and remote agents, gateways and test doubles implement it; bindings call it. Every
    method raises only ``A2AError``, and that of a remote agent also ``ClientError``, when the
    agent cannot be reached. A streaming method is an async generator: its first step raises
    errors that are known before the first event, and closing it never ends the task.
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
