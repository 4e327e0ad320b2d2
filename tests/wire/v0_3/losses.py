"""The losses in version 0.3: the list of ``docs/reference/versions.md``, as a function.

``left_of(value)`` is a value after a round trip through 0.3. Nothing else may differ.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from parley.model.cards import AgentCard
from parley.model.operations import (
    AuthenticationInfo,
    CancelTaskRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Artifact, Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from parley.wire.v0_3.proto import decode_content
from parley.wire.v0_3.values import optional_length


def left_of(value: Any, *, proto: bool = False) -> Any:
    """Return a value after the losses; ``proto``: in the form of the proto, of HTTP+JSON bodies."""

    def left(inner: Any) -> Any:
        return left_of(inner, proto=proto)

    if isinstance(value, tuple):
        return tuple(left(each) for each in value)
    if getattr(value, "tenant", ""):
        value = replace(value, tenant="")
    match value:
        case Part():
            return _part(value, proto)
        case Message():
            references = () if proto else value.reference_task_ids
            return replace(value, parts=left(value.parts), reference_task_ids=references)
        case Artifact():
            return replace(value, parts=left(value.parts))
        case TaskStatus() | TaskStatusUpdateEvent() | TaskArtifactUpdateEvent() | Task():
            names = {"status", "message", "artifact", "artifacts", "history"}
            held = names.intersection(value.__struct_fields__)
            return replace(value, **{name: left(getattr(value, name)) for name in held})
        case SendMessageRequest():
            configuration = value.configuration
            if proto and configuration is None:
                configuration = SendMessageConfiguration()
            return replace(value, message=left(value.message), configuration=left(configuration))
        case SendMessageConfiguration(task_push_notification_config=webhook):
            if webhook is not None:
                webhook = replace(left(webhook), task_id="")
            if proto:
                value = replace(value, history_length=optional_length(value.history_length))
            return replace(value, task_push_notification_config=webhook)
        case GetTaskRequest():
            return replace(value, history_length=optional_length(value.history_length))
        case TaskPushNotificationConfig(authentication=authentication):
            if authentication == AuthenticationInfo(scheme=""):
                authentication = None
            return replace(value, id=value.id or "default", authentication=authentication)
        case ListTaskPushNotificationConfigsRequest() if not proto:
            return replace(value, page_size=0, page_token="")
        case ListTaskPushNotificationConfigsResponse(configs=configs):
            token = value.next_page_token if proto else ""
            return replace(value, configs=left(configs), next_page_token=token)
        case ListTasksResponse():
            return replace(value, tasks=left(value.tasks))
        case AgentCard():
            return replace(value, supported_interfaces=_interfaces(value))
        case CancelTaskRequest() if proto:
            return value if value.metadata else replace(value, metadata=None)
    return value


def _part(part: Part, proto: bool) -> Part:
    if part.is_file:
        if proto and part.raw is not None:
            # Valid base64: it may be the encoding of bytes by official Python peers.
            return replace(part, raw=decode_content(part.raw, part.media_type))
        return part
    if part.has_data and not isinstance(part.data, dict) and not part.metadata:
        part = replace(part, metadata=None)
    return replace(part, filename="", media_type="")


def _interfaces(card: AgentCard) -> tuple[Any, ...]:
    found = {
        (each.url, each.protocol_binding): replace(each, protocol_version="0.3.0")
        for each in card.supported_interfaces
        if not each.tenant and (each.protocol_version + ".").startswith("0.3.")
    }
    return tuple(found.values())
