"""The one interface between those who ask and those who answer (specification §3.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import msgspec

from parley.model.cards import AgentCard
from parley.model.parts import Message
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import (
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
)
from parley.model.tasks import Event, Task

_MARK = "\x1f"
"""Stands in no issuer and no id (see ``may_be_name``), so it separates the two."""


class Caller(msgspec.Struct, frozen=True):
    """The one who asks.

    ``id`` and ``issuer`` name a caller: the "bob" of two issuers is two callers. ``issuer`` is the
    issuer or the security scheme that vouches for the id; a server with one scheme needs none.
    ``authenticated`` is false when nobody vouches for the id: an unauthenticated "bob" is another.
    ``claims`` is what else the credential says.
    """

    id: str = ""
    authenticated: bool = False
    claims: dict[str, object] = {}
    issuer: str = ""

    @property
    def owner(self) -> str:
        """The name under which all that the caller owns is kept: tasks, contexts, receipts.

        Two callers have the same one only if they are the same; those without an id have none.
        """
        if not self.id:
            return ""
        name = owned_by(self.issuer) + self.id if self.issuer else self.id
        return name if self.authenticated else _MARK + name


ANONYMOUS = Caller()


def owned_by(issuer: str) -> str:
    """Return what the owner begins with for the authenticated callers of an issuer."""
    return issuer + _MARK


def caller_of(owner: str) -> Caller:
    """Return the caller who has this ``owner``, without claims."""
    if not owner:
        return ANONYMOUS
    issuer, _, id = owner.removeprefix(_MARK).rpartition(_MARK)
    return Caller(id=id, issuer=issuer, authenticated=not owner.startswith(_MARK))


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """What travels beside a request.

    ``extensions`` are the URIs that the caller asked for and the agent has (those in force).
    ``last_event_id`` is the caller's place in a stream: the number of the last event that it has.
    ``traceparent`` is the W3C trace header, passed on as received. ``patience`` is how many seconds
    the caller waits for the end of a task, where the binding knows of a deadline.
    """

    caller: Caller = ANONYMOUS
    tenant: str = ""
    version: str = "1.0"
    extensions: frozenset[str] = frozenset()
    last_event_id: str | None = None
    traceparent: str = ""
    patience: float | None = None


class StreamItem(NamedTuple):
    """One event of a stream.

    ``seq`` is its number in the task's log; ``None`` where the answerer keeps no numbers, and for
    a direct message. ``json`` is the event's canonical JSON where it is at hand already.
    """

    event: Event
    seq: int | None = None
    json: bytes | None = None


class A2AService(Protocol):
    """The eleven operations of A2A 1.0 on the 1.0 data model.

    Whatever answers implements it (a local agent, a remote one, a gateway, a test double);
    whatever asks calls it. Every method raises only ``A2AError``; that of a remote agent also
    ``ClientError``, when the agent could not be asked or heard. A streaming method is an async
    generator: errors that are known before the first event are raised by its first step, and
    closing it ends the caller's interest, never the task.
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
