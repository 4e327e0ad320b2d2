"""The names, verbs and paths of operations in 0.3 and in older texts (0.3 §3.5.6)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.model.errors import A2AError, PeerError
from parley.model.operations import BY_NAME, Operation
from parley.wire.versions import Route

# The names in 0.3 of fields that an agent may reject after a request was read.
_IN_JSON = {
    "configuration.taskPushNotificationConfig": "configuration.pushNotificationConfig",
    "configuration.returnImmediately": "configuration.blocking",
}
_IN_PROTO = {
    "configuration.taskPushNotificationConfig": "configuration.pushNotification",
    "configuration.returnImmediately": "configuration.blocking",
    "message.parts": "message.content",
}

_EXTENDED_CARD = "supportsAuthenticatedExtendedCard"


def with_wire_names(error: A2AError, *, proto: bool = False) -> A2AError:
    """Return an error with the names of fields and operations that 0.3 has."""
    names = _IN_PROTO if proto else _IN_JSON
    metadata = error.metadata
    operation = metadata.get("operation", "")
    operations = PROTO_NAMES if proto else NAMES
    if operation in operations:
        # A missing capability: the error names the operation, and the field of the card.
        names = {"capabilities.extendedAgentCard": _EXTENDED_CARD, operation: operations[operation]}
        metadata = {**metadata, "operation": operations[operation]}
        if metadata.get("capability") == "extendedAgentCard":
            metadata["capability"] = _EXTENDED_CARD
    texts = (error.message, *(violation.field for violation in error.violations))
    if isinstance(error, PeerError) or not any(name in text for name in names for text in texts):
        return error

    def renamed(text: str) -> str:
        for name, ours in names.items():
            text = text.replace(name, ours)
        return text

    return type(error)(
        renamed(error.message),
        metadata=metadata,
        violations=tuple([each._replace(field=renamed(each.field)) for each in error.violations]),
        details=error.details,
        retry_after=error.retry_after,
    )


NAMES: Mapping[str, str] = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
    "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
    "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
    "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
}
"""The JSON-RPC method of each operation. 0.3 has none for ListTasks."""

PROTO_NAMES: Mapping[str, str] = {
    **{name: name for name in BY_NAME},
    "SubscribeToTask": "TaskSubscription",
    "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfig",
    "GetExtendedAgentCard": "GetAgentCard",
}
"""The rpc of each operation in the proto."""

_ALIASES = {
    "tasks/send": "SendMessage",
    "sendTask": "SendMessage",
    "sendTaskSubscribe": "SendStreamingMessage",
    "tasks/sendSubscribe": "SendStreamingMessage",
    "tasks/list": "ListTasks",
    "tasks/subscribe": "SubscribeToTask",
    "tasks/pushNotification/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotification/get": "GetTaskPushNotificationConfig",
}

_SLASHED: Mapping[str, Operation] = {
    **{method: BY_NAME[name] for name, method in NAMES.items()},
    **{
        alias: msgspec.structs.replace(BY_NAME[name], aliases=(alias,))
        for alias, name in _ALIASES.items()
    },
}

METHODS: Mapping[str, Operation] = {
    **_SLASHED,
    **{
        dotted: msgspec.structs.replace(operation, aliases=(dotted,))
        for method, operation in _SLASHED.items()
        if (dotted := method.replace("/", ".")) != method
    },
}
"""The operations by every accepted JSON-RPC method, with slashes or dots.

An operation under a legacy name has that name among its aliases.
"""

_CONFIGS = "/v1/tasks/{id}/pushNotificationConfigs"

ROUTES: tuple[Route, ...] = tuple(
    Route(verb, path, BY_NAME[name], alias)
    for verb, path, name, alias in (
        ("POST", "/v1/message:send", "SendMessage", False),
        ("POST", "/v1/message:stream", "SendStreamingMessage", False),
        ("GET", "/v1/tasks", "ListTasks", False),
        ("GET", "/v1/tasks/{id}", "GetTask", False),
        ("POST", "/v1/tasks/{id}:cancel", "CancelTask", False),
        # The text of 0.3 says POST, its proto GET; clients use both.
        ("POST", "/v1/tasks/{id}:subscribe", "SubscribeToTask", False),
        ("GET", "/v1/tasks/{id}:subscribe", "SubscribeToTask", True),
        ("POST", _CONFIGS, "CreateTaskPushNotificationConfig", False),
        ("GET", _CONFIGS, "ListTaskPushNotificationConfigs", False),
        ("GET", _CONFIGS + "/{config_id}", "GetTaskPushNotificationConfig", False),
        ("DELETE", _CONFIGS + "/{config_id}", "DeleteTaskPushNotificationConfig", False),
        ("GET", "/v1/card", "GetExtendedAgentCard", False),
        ("POST", "/tasks/send", "SendMessage", True),
        ("POST", "/tasks/sendStream", "SendStreamingMessage", True),
        ("POST", "/tasks/{id}/cancel", "CancelTask", True),
        ("GET", "/tasks/{id}/subscribe", "SubscribeToTask", True),
        # Drawn in "the life of a request" of the A2A documents, in every version.
        ("POST", "/sendMessage", "SendMessage", True),
        ("POST", "/sendMessageStream", "SendStreamingMessage", True),
    )
)
"""The routes of HTTP+JSON; a server accepts an alias, a client never sends it."""

VERSIONLESS_ROUTES: tuple[Route, ...] = (
    Route("GET", "/tasks", BY_NAME["ListTasks"], alias=True),
    Route("GET", "/tasks/{id}", BY_NAME["GetTask"], alias=True),
)
"""Requests that texts print without a version: at paths of 1.0, but answered as 0.3."""
