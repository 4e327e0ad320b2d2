"""A remote agent as an ``A2AService``: the operations of the table, over one binding.

One call: check against the card, binding, retry, missing ids filled in. ``RemoteAgent`` calls it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, cast

import msgspec

from parley.client.bindings.binding import Binding
from parley.client.card.interface import declares
from parley.client.retry import Retry, repeat
from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    ExtensionSupportRequiredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    OPERATIONS,
    CancelTaskRequest,
    GetTaskRequest,
    Operation,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

logger = logging.getLogger(__name__)


class RemoteService:
    """One method for every operation of the table, named as in ``A2AService``.

    Each call is checked against ``card`` (§3.3.4), which a later card may replace. Operations that
    change nothing are retried after transient errors, and so are messages if ``context`` asks for
    idempotent sends and the agent supports them. Streams are not resumed here; ``follow`` does.

    Methods raise ``A2AError`` for the agent's answer (``is_remote``), ``ClientError`` for a failed
    call.
    """

    def __init__(self, binding: Binding, card: AgentCard, retry: Retry) -> None:
        self.card = card
        self._binding = binding
        self._retry = retry

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Call an operation that answers once."""
        self._check(operation, request, context)
        idempotent = (
            IDEMPOTENT_SEND in context.extensions
            and isinstance(request, SendMessageRequest)
            and declares(self.card, IDEMPOTENT_SEND)
        )
        try:
            answer = await repeat(
                lambda: self._binding.call(operation, request, context),
                self._retry,
                safe=operation.safe or idempotent,
                await_restart=idempotent,
                name=operation.name,
            )
        except A2AError as error:
            error.is_remote = True
            raise
        return with_ids(answer, *ids_in(request))

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Call an operation that answers with events.

        A direct message or a terminal state ends the stream; later events are dropped.
        """
        self._check(operation, request, context)
        task_id, context_id = ids_in(request)
        is_over = False
        items = self._binding.stream(operation, request, context)
        try:
            async with aclosing(cast("AsyncGenerator[StreamItem, None]", items)) as open_items:
                async for item in open_items:
                    if is_over:
                        logger.warning("task %.100r: events after its end are ignored", task_id)
                        return
                    event = with_ids(item.event, task_id, context_id)
                    if isinstance(event, Message):
                        is_over = True
                    elif isinstance(event, TaskArtifactUpdateEvent):
                        task_id, context_id = event.task_id, event.context_id
                    else:
                        task_id = event.id if isinstance(event, Task) else event.task_id
                        context_id, is_over = event.context_id, event.status.state.is_terminal
                    yield item if event is item.event else item._replace(event=event)
        except A2AError as error:
            error.is_remote = True
            raise

    def _check(self, operation: Operation, request: A2AStruct, context: CallContext) -> None:
        """Raise the error that the agent would answer with, according to its card (§3.3.4)."""
        capabilities = self.card.capabilities
        operation.check(capabilities)
        sent = request.configuration if isinstance(request, SendMessageRequest) else None
        if sent and sent.task_push_notification_config and not capabilities.push_notifications:
            raise PushNotificationNotSupportedError(
                f"the card of {self.card.name} does not declare capabilities.pushNotifications; "
                "send the message without a webhook"
            )
        missing = [
            extension.uri
            for extension in capabilities.extensions
            if extension.required and extension.uri not in context.extensions
        ]
        if missing:
            raise ExtensionSupportRequiredError(
                f"{self.card.name} is only spoken to with {', '.join(missing)}; "
                "connect with extensions=[...] if you do as they say",
                metadata={"requiredExtensions": ",".join(missing)},
            )
        uri = operation.extension
        if uri and not declares(self.card, uri):
            raise UnsupportedOperationError(
                f"{operation.name} needs the extension {uri}, which the card of "
                f"{self.card.name} does not declare",
                metadata={"operation": operation.name, "extension": uri},
            )


def ids_in(request: A2AStruct) -> tuple[str, str]:
    """Return the task id and the context id of a request; empty for none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id, request.message.context_id
    if isinstance(request, GetTaskRequest | CancelTaskRequest | SubscribeToTaskRequest):
        return request.id, ""
    return getattr(request, "task_id", ""), ""


def with_ids(answer: Any, task_id: str, context_id: str) -> Any:
    """Return an answer or an event with its missing ids filled in, if they are known."""
    missing = {}
    for name in _IDS.get(type(answer), ()):
        if not getattr(answer, name):
            id = context_id if name == "context_id" else task_id
            if id:
                missing[name] = id
    return msgspec.structs.replace(answer, **missing) if missing else answer


_IDS: dict[type, tuple[str, ...]] = {
    Task: ("id", "context_id"),
    TaskStatusUpdateEvent: ("task_id", "context_id"),
    TaskArtifactUpdateEvent: ("task_id", "context_id"),
    Message: ("context_id",),
    TaskPushNotificationConfig: ("task_id",),
}


def _method(operation: Operation) -> Callable[..., Awaitable[Any] | AsyncIterator[StreamItem]]:
    if operation.streaming:

        def stream(
            self: RemoteService, request: A2AStruct, context: CallContext
        ) -> AsyncIterator[StreamItem]:
            return self.stream(operation, request, context)

        return stream

    def call(
        self: RemoteService, request: A2AStruct, context: CallContext
    ) -> Coroutine[Any, Any, Any]:
        return self.call(operation, request, context)

    return call


for _operation in OPERATIONS:
    setattr(RemoteService, _operation.method, _method(_operation))
