"""The operations of A2A 1.0, as a table (specification §5.3).

Bindings, client, metrics and documentation are driven by this table; nothing else names an
operation's types or path.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from parley.model.cards import AgentCapabilities, AgentCard
from parley.model.errors import (
    A2AError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
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
    SendMessageResponse,
    StreamResponse,
    SubscribeToTaskRequest,
)
from parley.model.struct import A2AStruct
from parley.model.tasks import Task

Capability = Literal["streaming", "push_notifications", "extended_agent_card"]

_REFUSALS: dict[Capability, type[A2AError]] = {
    "streaming": UnsupportedOperationError,
    "push_notifications": PushNotificationNotSupportedError,
    "extended_agent_card": UnsupportedOperationError,
}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation.

    ``name`` is its JSON-RPC method and gRPC name, ``method`` the method of ``A2AService``.
    ``verb`` and ``path`` are those of the HTTP+JSON binding, with fields of the request in
    braces. ``aliases`` are legacy names for it. ``safe`` operations change nothing and may be
    repeated. ``extension`` is the URI of the extension that adds the operation,
    which then is no method of ``A2AService``; empty for those of the specification.
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
        """Raise the error of specification §3.3.4 when the card does not declare what is needed."""
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
