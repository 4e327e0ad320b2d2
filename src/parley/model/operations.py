"""The operations of A2A 1.0: push configurations, requests, responses, and their table (§3.1-§5.3).

Bindings, client, metrics and documentation are driven by the table. No other place names the types
or the path of an operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.parts import Message
from parley.model.struct import A2AStruct, Int32, NonEmpty, Timestamp, freeze
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

PushEvents = Literal["all", "significant"]
"""The events of a task that a webhook receives: all, or its states and complete artifacts."""


class PushOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The events that a webhook receives. Without ``events`` the agent chooses."""

    events: PushEvents | Literal[""] = ""


class AuthenticationInfo(A2AStruct, frozen=True, kw_only=True):
    """The agent's authentication at a webhook: an HTTP scheme and its credentials.

    Credentials are not shown by ``repr``.
    """

    scheme: str
    credentials: str = ""

    def __repr__(self) -> str:
        secret = ", credentials='...'" if self.credentials else ""
        return f"AuthenticationInfo(scheme={self.scheme!r}{secret})"


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook for the events of a task.

    Secrets are not shown by ``repr``.
    """

    tenant: str = ""
    id: str = ""
    task_id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None

    def __repr__(self) -> str:
        secret = ", token='...'" if self.token else ""
        return (
            f"TaskPushNotificationConfig(id={self.id!r}, task_id={self.task_id!r}, "
            f"url='{server_of(self.url)}/...'{secret}, authentication={self.authentication!r})"
        )


def server_of(url: str) -> str:
    """Return the scheme and host of a webhook's URL, whose path is often a secret."""
    try:
        address = urlsplit(url)
    except ValueError:
        return "?"
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"


SKILL_KEY = "skill"
"""The metadata key for the id of the skill that a message is for."""


class SendMessageConfiguration(A2AStruct, frozen=True, kw_only=True):
    """Options for the answer to a message (specification §3.2.2).

    ``history_length``: ``None`` for all messages, 0 for none, n for the last n messages (§3.2.4).
    """

    accepted_output_modes: tuple[str, ...] = ()
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: Int32 | None = None
    return_immediately: bool = False

    def __post_init__(self) -> None:
        freeze(self, "accepted_output_modes")


class SendMessageRequest(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    tenant: str = ""
    message: Message
    configuration: SendMessageConfiguration | None = None
    metadata: dict[str, Any] | None = None


class GetTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for one task."""

    tenant: str = ""
    id: NonEmpty
    history_length: Int32 | None = None


class ListTasksRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for a page of tasks, the last updated first (specification §3.1.4).

    ``status_timestamp_after`` is inclusive. ``status`` UNSPECIFIED does not filter.
    """

    tenant: str = ""
    context_id: str = ""
    status: TaskState = TaskState.UNSPECIFIED
    page_size: Int32 | None = None
    page_token: str = ""
    history_length: Int32 | None = None
    status_timestamp_after: Timestamp | None = None
    include_artifacts: bool | None = None


class ListTasksResponse(A2AStruct, frozen=True, kw_only=True):
    """One page of tasks. ``next_page_token`` is empty on the last page."""

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32

    def __post_init__(self) -> None:
        freeze(self, "tasks")


class CancelTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """A request to cancel a task."""

    tenant: str = ""
    id: NonEmpty
    metadata: dict[str, Any] | None = None


class SubscribeToTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the events of a task from now on."""

    tenant: str = ""
    id: NonEmpty


class GetTaskPushNotificationConfigRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for one push notification configuration."""

    tenant: str = ""
    task_id: NonEmpty
    id: NonEmpty


class DeleteTaskPushNotificationConfigRequest(A2AStruct, frozen=True, kw_only=True):
    """A request to remove a push notification configuration."""

    tenant: str = ""
    task_id: NonEmpty
    id: NonEmpty


class ListTaskPushNotificationConfigsRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for a task's push notification configurations."""

    tenant: str = ""
    task_id: NonEmpty
    page_size: Int32 = 0
    page_token: str = ""


class ListTaskPushNotificationConfigsResponse(A2AStruct, frozen=True, kw_only=True):
    """One page of push notification configurations."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""

    def __post_init__(self) -> None:
        freeze(self, "configs")


class GetExtendedAgentCardRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the card of authenticated callers."""

    tenant: str = ""


class Empty(A2AStruct, frozen=True, kw_only=True):
    """An empty response (``google.protobuf.Empty``)."""


class SendMessageResponse(A2AStruct, frozen=True, kw_only=True):
    """The task that works on a message, or a direct reply."""

    task: Task | None = None
    message: Message | None = None

    def __post_init__(self) -> None:
        if (self.task is None) == (self.message is None):
            raise ValueError("a SendMessageResponse has exactly one of task and message")

    @classmethod
    def of(cls, payload: Task | Message) -> SendMessageResponse:
        """Wrap ``payload`` under its name in the specification."""
        return cls(task=payload) if isinstance(payload, Task) else cls(message=payload)

    @property
    def payload(self) -> Task | Message:
        """The task or the message."""
        return self.task if self.task is not None else self.message  # type: ignore[return-value]


class StreamResponse(A2AStruct, frozen=True, kw_only=True):
    """One event of a stream (specification §3.2.3)."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None

    def __post_init__(self) -> None:
        given = (
            (self.task is not None)
            + (self.message is not None)
            + (self.status_update is not None)
            + (self.artifact_update is not None)
        )
        if given != 1:
            raise ValueError(
                "a StreamResponse has exactly one of task, message, statusUpdate and artifactUpdate"
            )

    @classmethod
    def of(cls, payload: Event) -> StreamResponse:
        """Wrap ``payload`` under its name in the specification."""
        if isinstance(payload, TaskArtifactUpdateEvent):
            return cls(artifact_update=payload)
        if isinstance(payload, TaskStatusUpdateEvent):
            return cls(status_update=payload)
        return cls(task=payload) if isinstance(payload, Task) else cls(message=payload)

    @property
    def payload(self) -> Event:
        """The event that is set."""
        event = self.artifact_update or self.status_update or self.task or self.message
        assert event is not None  # __post_init__ ensures it
        return event


def named_skill(message: Message, metadata: Mapping[str, Any] | None) -> Any:
    """Return the skill that a message, or the ``metadata`` of its request, names, if any."""
    named = message.metadata.get(SKILL_KEY) if message.metadata else None
    return metadata.get(SKILL_KEY) if named is None and metadata else named


def unknown_skill(named: Any, known: Iterable[str]) -> InvalidParamsError:
    """Return the error for a skill that an agent does not have."""
    names = ", ".join(known) or "none"
    return InvalidParamsError(
        f"this agent has no skill {str(named)[:100]!r}; it has {names}",
        violations=(FieldViolation(f"message.metadata.{SKILL_KEY}", f"one of {names}"),),
    )


Capability = Literal["streaming", "push_notifications", "extended_agent_card"]

_REFUSALS: dict[Capability, type[A2AError]] = {
    "streaming": UnsupportedOperationError,
    "push_notifications": PushNotificationNotSupportedError,
    "extended_agent_card": UnsupportedOperationError,
}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of the protocol.

    ``name`` is its JSON-RPC method and gRPC name, ``method`` the method of ``A2AService``. ``verb``
    and ``path`` are for the HTTP+JSON binding, with fields of the request in braces. ``aliases``
    are its legacy names. ``safe`` operations change nothing and may be repeated. ``extension`` is
    the URI of the extension that adds the operation, empty for operations of the specification;
    ``A2AService`` has no method for an operation of an extension.
    """

    name: str
    method: str
    request: type[A2AStruct]
    response: type[A2AStruct]
    streaming: bool = False
    verb: Literal["GET", "POST", "DELETE"]
    path: str
    capability: Capability | None = None
    safe: bool = False
    aliases: tuple[str, ...] = ()
    extension: str = ""

    def check(self, capabilities: AgentCapabilities) -> None:
        """Raise the error of specification §3.3.4 when the card does not declare the capability."""
        if self.capability and not getattr(capabilities, self.capability):
            field = {
                "streaming": "streaming",
                "push_notifications": "pushNotifications",
                "extended_agent_card": "extendedAgentCard",
            }[self.capability]
            raise _REFUSALS[self.capability](
                f"{self.name} needs capabilities.{field}, which this agent's card does not declare",
                metadata={"operation": self.name, "capability": field},
            )


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="SendMessage",
        method="send_message",
        request=SendMessageRequest,
        response=SendMessageResponse,
        verb="POST",
        path="/message:send",
    ),
    Operation(
        name="SendStreamingMessage",
        method="send_streaming_message",
        request=SendMessageRequest,
        response=StreamResponse,
        streaming=True,
        verb="POST",
        path="/message:stream",
        capability="streaming",
    ),
    Operation(
        name="GetTask",
        method="get_task",
        request=GetTaskRequest,
        response=Task,
        verb="GET",
        path="/tasks/{id}",
        safe=True,
    ),
    Operation(
        name="ListTasks",
        method="list_tasks",
        request=ListTasksRequest,
        response=ListTasksResponse,
        verb="GET",
        path="/tasks",
        safe=True,
    ),
    Operation(
        name="CancelTask",
        method="cancel_task",
        request=CancelTaskRequest,
        response=Task,
        verb="POST",
        path="/tasks/{id}:cancel",
    ),
    Operation(
        name="SubscribeToTask",
        method="subscribe_to_task",
        request=SubscribeToTaskRequest,
        response=StreamResponse,
        streaming=True,
        verb="POST",
        path="/tasks/{id}:subscribe",
        capability="streaming",
        safe=True,
    ),
    Operation(
        name="CreateTaskPushNotificationConfig",
        method="create_task_push_notification_config",
        request=TaskPushNotificationConfig,
        response=TaskPushNotificationConfig,
        verb="POST",
        path="/tasks/{task_id}/pushNotificationConfigs",
        capability="push_notifications",
    ),
    Operation(
        name="GetTaskPushNotificationConfig",
        method="get_task_push_notification_config",
        request=GetTaskPushNotificationConfigRequest,
        response=TaskPushNotificationConfig,
        verb="GET",
        path="/tasks/{task_id}/pushNotificationConfigs/{id}",
        capability="push_notifications",
        safe=True,
    ),
    Operation(
        name="ListTaskPushNotificationConfigs",
        method="list_task_push_notification_configs",
        request=ListTaskPushNotificationConfigsRequest,
        response=ListTaskPushNotificationConfigsResponse,
        verb="GET",
        path="/tasks/{task_id}/pushNotificationConfigs",
        capability="push_notifications",
        safe=True,
    ),
    Operation(
        name="DeleteTaskPushNotificationConfig",
        method="delete_task_push_notification_config",
        request=DeleteTaskPushNotificationConfigRequest,
        response=Empty,
        verb="DELETE",
        path="/tasks/{task_id}/pushNotificationConfigs/{id}",
        capability="push_notifications",
    ),
    Operation(
        name="GetExtendedAgentCard",
        method="get_extended_agent_card",
        request=GetExtendedAgentCardRequest,
        response=AgentCard,
        verb="GET",
        path="/extendedAgentCard",
        capability="extended_agent_card",
        safe=True,
    ),
)

BY_NAME: dict[str, Operation] = {operation.name: operation for operation in OPERATIONS}
