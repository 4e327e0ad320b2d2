"""Requests, answers and events of specifications before 0.3, converted to the form of a version.

Before 0.3, events had no kind, artifacts an index instead of an id, and updates only the ``id`` of
their task; some agents mix the forms of two versions. Only rejected requests and non-canonical
answers are converted: correct ones have no extra cost, and keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from parley.model.errors import InvalidParamsError
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Operation,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.struct import encode
from parley.model.tasks import Event, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.wire.json import protojson
from parley.wire.json.syntax import Bytes

Members = dict[str, Any]

_KINDS = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}
_WRAPPERS = {
    "task": "task",
    "message": "message",
    "msg": "message",
    "statusUpdate": "statusUpdate",
    "status_update": "statusUpdate",
    "taskStatusUpdate": "statusUpdate",
    "artifactUpdate": "artifactUpdate",
    "artifact_update": "artifactUpdate",
    "taskArtifactUpdate": "artifactUpdate",
}
_OWN = ("status", "artifact", "parts", "content")
_PLACEHOLDER_ID = "-"


class Spelling(NamedTuple):
    """The spellings of a version, by the spellings of other versions.

    ``part`` returns a part in the form of the version; ``agent`` is the role of the agent.
    """

    states: Mapping[str, str]
    roles: Mapping[str, str]
    agent: str
    part: Callable[[Members], Members]


class LegacyAnswer(NamedTuple):
    """An answer or an event: its name in 1.0 (``statusUpdate``), and its normalized members."""

    name: str
    members: Members
    lacks_task_id: bool

    def strip_placeholder(self, event: Event) -> Event:
        """Return the event that was read from the members, without a placeholder."""
        if self.lacks_task_id:
            assert isinstance(event, TaskStatusUpdateEvent | TaskArtifactUpdateEvent)
            return replace(event, task_id="")
        return event


def normalize_answer(value: Any, spelling: Spelling, *, in_stream: bool) -> LegacyAnswer | None:
    """Return an answer to a message, or an event ``in_stream``; ``None`` if it is neither.

    An update without a task id belongs to the task of the stream.
    """
    if not isinstance(value, dict):
        return None
    name, value = _identify(value, in_stream)
    match name:
        case "message":
            return LegacyAnswer(name, _message(value, spelling), False)
        case "task":
            return LegacyAnswer(name, normalize_task(value, spelling), False)
        case "statusUpdate":
            update = _status_of(value, spelling)
        case "artifactUpdate":
            update = _artifact_update(value, spelling)
        case _:
            return None
    id = _first(value, "taskId", "task_id", "id")
    for spelled in ("task_id", "id"):
        update.pop(spelled, None)
    update["taskId"] = id or _PLACEHOLDER_ID
    return LegacyAnswer(name, _with_context(update), not id)


def normalize_task(value: Any, spelling: Spelling) -> Any:
    """Return a task in the form of the version, without its wrapper if it has one."""
    if not isinstance(value, dict):
        return value
    inner = value.get("task")
    if isinstance(inner, dict) and "status" not in value:
        value = inner
    made = _with_context(_status_of(value, spelling))
    if not made.get("id"):
        id = _first(value, "taskId", "task_id")
        if id is not None:
            made["id"] = id
    artifacts, history = value.get("artifacts"), value.get("history")
    if isinstance(artifacts, list):
        made["artifacts"] = [_artifact(each, at, spelling) for at, each in enumerate(artifacts)]
    if isinstance(history, list):
        made["history"] = [_message(each, spelling) for each in history]
    return made


def _identify(value: Members, in_stream: bool) -> tuple[str, Members]:
    """Return the name and members of an object: by its kind, a wrapper, or its members."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind], value
    if not any(name in value for name in _OWN):
        found = [name for name in _WRAPPERS if isinstance(value.get(name), dict)]
        return (_WRAPPERS[found[0]], value[found[0]]) if len(found) == 1 else ("", value)
    if isinstance(value.get("artifact"), dict):
        return "artifactUpdate", value
    if "status" not in value:
        return "message", value
    is_update = in_stream and ("final" in value or "id" not in value)
    return ("statusUpdate" if is_update else "task"), value


def _status_of(value: Members, spelling: Spelling) -> Members:
    """Return an object with its status in the form of the version."""
    made, status = dict(value), value.get("status")
    if isinstance(status, str):
        status = {"state": status}
    if not isinstance(status, dict):
        return made
    status = dict(status)
    state = status.get("state")
    if isinstance(state, str) and state in spelling.states:
        status["state"] = spelling.states[state]
    if isinstance(status.get("message"), dict):
        status["message"] = _message(status["message"], spelling)
    made["status"] = status
    return made


def _artifact_update(value: Members, spelling: Spelling) -> Members:
    made, artifact = dict(value), value.get("artifact")
    if isinstance(artifact, dict):
        made["artifact"] = _artifact(artifact, 0, spelling)
        # The first specifications put these flags into the artifact.
        for name, alias in (("append", "append"), ("lastChunk", "last_chunk")):
            flag = _first(artifact, name, alias)
            if flag is not None and name not in value and alias not in value:
                made[name] = flag
    return made


def _artifact(value: Any, position: int, spelling: Spelling) -> Any:
    """Return an artifact. Without an id it gets its ``index``, or its position, as id."""
    if not isinstance(value, dict):
        return value
    made = dict(value)
    if not _first(value, "artifactId", "artifact_id"):
        index = value.get("index")
        is_number = isinstance(index, int) and not isinstance(index, bool)
        made.pop("artifact_id", None)
        made["artifactId"] = str(index if is_number else position)
    return _with_parts(made, spelling)


def _message(value: Any, spelling: Spelling) -> Any:
    if not isinstance(value, dict):
        return value
    made, role = dict(value), value.get("role")
    if not _first(value, "messageId", "message_id"):
        made.pop("message_id", None)
        made["messageId"] = uuid4().hex
    if role is None or (isinstance(role, str) and role in spelling.roles):
        made["role"] = spelling.roles.get(role or "", spelling.agent)
    return _with_parts(_with_context(made), spelling)


def _with_parts(value: Members, spelling: Spelling) -> Members:
    parts = value.get("parts")
    if isinstance(parts, list):
        value["parts"] = [spelling.part(p) if isinstance(p, dict) else p for p in parts]
    return value


def _with_context(value: Members) -> Members:
    """Return an object whose session (the name in the first specifications) became its context."""
    session = value.get("sessionId")
    if session and not _first(value, "contextId", "context_id"):
        value = {name: item for name, item in value.items() if name != "context_id"}
        value["contextId"] = session
    return value


def _first(members: Mapping[str, Any], *names: str) -> Any:
    """Return the first non-empty member among these names."""
    return next((members[name] for name in names if members.get(name) not in (None, "")), None)


T = TypeVar("T")

_ABOUT_ONE_TASK = (GetTaskRequest, CancelTaskRequest, SubscribeToTaskRequest)
_MESSAGE_ID = ("messageId", "message_id")
LATEST_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_CONFIGURATION_OF_0_3 = (b'"blocking"', b'"pushNotificationConfig"')
_LATEST_NAMES = {
    "bytes": "raw",
    "fileWithBytes": "raw",
    "uri": "url",
    "fileWithUri": "url",
    "mimeType": "mediaType",
    "mime_type": "mediaType",
    "name": "filename",
}
"""The members of a file of 0.3, and of its proto, by their names in a part of 1.0."""

_TASK_ID = ("taskId", "task_id")


def read_with_fallback(
    members: Any,
    normalize: Callable[[Any], Any],
    read: Callable[[Any], T],
    refused: InvalidParamsError | None = None,
) -> T:
    """Return ``members`` read by ``read``, or read after ``normalize`` if that fails.

    ``normalize`` returns ``None`` if it finds no older form. ``refused`` is the error of an earlier
    attempt to read them. Raises ``InvalidParamsError``.
    """
    if refused is None:
        try:
            return read(members)
        except InvalidParamsError as error:
            refused = error
    known = normalize(members)
    if known is None:
        raise refused from None
    return read(known)


def read_mixed(read: Callable[[Bytes], T], data: Bytes) -> T:
    """Return a 1.0 request read by ``read``, in which forms of 0.3 are allowed.

    Introductory texts mix both: roles, parts with a ``kind``, and the members of ``configuration``.
    Raises the ``InvalidParamsError`` of ``read``.
    """
    refused = None
    text = bytes(data)
    if not any(name in text for name in _CONFIGURATION_OF_0_3):
        try:
            return read(data)
        except InvalidParamsError as error:
            refused = error
    mixed = _to_latest(protojson.parse(data))
    if mixed is not None:
        return read(encode(mixed))
    if refused is not None:
        raise refused
    return read(data)


def _to_latest(members: Any) -> dict[str, Any] | None:
    """Return a request with a message of 0.3 in the forms of 1.0, ``None`` for others."""
    message = members.get("message") if isinstance(members, dict) else None
    if not isinstance(message, dict):
        return None
    changed = dict(message)
    if isinstance(role := message.get("role"), str):
        changed["role"] = LATEST_ROLES.get(role, role)
    if isinstance(parts := message.get("parts"), list):
        changed["parts"] = [part_to_latest(p) if isinstance(p, dict) else p for p in parts]
    latest = {**members, "message": changed}
    if isinstance(configuration := members.get("configuration"), dict):
        configuration = latest["configuration"] = dict(configuration)
        if isinstance(blocking := configuration.pop("blocking", None), bool):
            configuration.setdefault("returnImmediately", not blocking)
        if (push := configuration.pop("pushNotificationConfig", None)) is not None:
            configuration.setdefault("taskPushNotificationConfig", push)
    return None if latest == members else latest


def part_to_latest(part: Members) -> Members:
    """Return the 1.0 form of a part of 0.3; a part of 1.0 is left unchanged."""
    changed = {name: value for name, value in part.items() if name not in ("kind", "type")}
    file = changed.get("file")
    if isinstance(file, dict):
        del changed["file"]
        for name, latest in _LATEST_NAMES.items():
            if value := file.get(name):
                changed.setdefault(latest, value)
    return changed


def normalize_request(
    operation: Operation,
    members: Any,
    *,
    states: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
    task_ids: bool = False,
) -> dict[str, Any] | None:
    """Return the parameters of an operation in the form of a version; ``None`` if unchanged.

    - A message without an id gets the id next to the message.
    - A role, or the state in a filter, is converted by ``roles`` and ``states``.
    - With ``task_ids``, a task may be named ``taskId`` instead of ``id``.
    """
    if not isinstance(members, dict):
        return None
    kind = operation.request
    if kind is SendMessageRequest:
        return _request_message(members, roles or {})
    if kind is ListTasksRequest:
        state = members.get("status")
        known = states.get(state) if isinstance(state, str) else None
        return None if known is None else {**members, "status": known}
    if task_ids and kind in _ABOUT_ONE_TASK and not members.get("id"):
        task_id = _first(members, *_TASK_ID)
        return None if task_id is None else {**members, "id": task_id}
    return None


def _request_message(members: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any] | None:
    message = members.get("message")
    if not isinstance(message, dict):
        return None
    changed = dict(message)
    beside = _first(members, *_MESSAGE_ID)
    if beside is not None and _first(message, *_MESSAGE_ID) is None:
        for name in _MESSAGE_ID:
            changed.pop(name, None)
        changed["messageId"] = beside
    role = message.get("role")
    if isinstance(role, str) and role in roles:
        changed["role"] = roles[role]
    return None if changed == message else {**members, "message": changed}
