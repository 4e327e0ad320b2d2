"""Requests as textbooks and documents from before 0.3 print them, put into the form of a version.

Only a request that would be rejected comes here, so a correct one costs nothing more, and keeps its
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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
from parley.wire.json import protojson
from parley.wire.json.syntax import Bytes

T = TypeVar("T")

_ABOUT_ONE_TASK = (GetTaskRequest, CancelTaskRequest, SubscribeToTaskRequest)
_MESSAGE_ID = ("messageId", "message_id")
_ROLES_OF_0_3 = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_CONFIGURATION_OF_0_3 = (b'"blocking"', b'"pushNotificationConfig"')
_FILE_OF_0_3 = (
    (("bytes", "fileWithBytes"), "raw"),
    (("uri", "fileWithUri"), "url"),
    (("name",), "filename"),
    (("mimeType", "mime_type"), "mediaType"),
)
_TASK_ID = ("taskId", "task_id")


def read_with_fallback(
    members: Any,
    normalize: Callable[[Any], Any],
    read: Callable[[Any], T],
    refused: InvalidParamsError | None = None,
) -> T:
    """Return what ``read`` makes of ``members``, or else of these after ``normalize``.

    ``normalize`` returns ``None`` if it finds nothing of an older text. ``refused`` is the error
    of an earlier attempt to read them. Raises ``InvalidParamsError``.
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
    """Return what ``read`` reads of a 1.0 request that may have the forms of 0.3 in it.

    Introductory texts mix both: roles, parts with a ``kind``, and the members of
    ``configuration``. Raises the ``InvalidParamsError`` of ``read``.
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
    """Return a request whose message has the forms of 0.3 in those of 1.0, ``None`` for others."""
    message = members.get("message") if isinstance(members, dict) else None
    if not isinstance(message, dict):
        return None
    changed = dict(message)
    if isinstance(role := message.get("role"), str):
        changed["role"] = _ROLES_OF_0_3.get(role, role)
    if isinstance(parts := message.get("parts"), list):
        changed["parts"] = [_part_to_latest(part) for part in parts]
    latest = {**members, "message": changed}
    if isinstance(configuration := members.get("configuration"), dict):
        configuration = latest["configuration"] = dict(configuration)
        if isinstance(blocking := configuration.pop("blocking", None), bool):
            configuration.setdefault("returnImmediately", not blocking)
        if (push := configuration.pop("pushNotificationConfig", None)) is not None:
            configuration.setdefault("taskPushNotificationConfig", push)
    return None if latest == members else latest


def _part_to_latest(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    changed = {name: value for name, value in part.items() if name not in ("kind", "type")}
    if isinstance(file := changed.get("file"), dict):
        del changed["file"]
        for names, latest in _FILE_OF_0_3:
            if (value := _first(file, names)) is not None:
                changed.setdefault(latest, value)
    return changed


def normalize(
    operation: Operation,
    members: Any,
    *,
    states: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
    task_ids: bool = False,
) -> dict[str, Any] | None:
    """Return the parameters of an operation in the form of a version; ``None`` if they have it.

    - A message without an id gets the one that stands beside it.
    - A role, or the state in a filter, is respelled as ``roles`` and ``states`` map it.
    - With ``task_ids``, a task may be named ``taskId`` instead of ``id``.
    """
    if not isinstance(members, dict):
        return None
    kind = operation.request
    if kind is SendMessageRequest:
        return _message(members, roles or {})
    if kind is ListTasksRequest:
        state = members.get("status")
        known = states.get(state) if isinstance(state, str) else None
        return None if known is None else {**members, "status": known}
    if task_ids and kind in _ABOUT_ONE_TASK and not members.get("id"):
        task_id = _first(members, _TASK_ID)
        return None if task_id is None else {**members, "id": task_id}
    return None


def _message(members: dict[str, Any], roles: Mapping[str, str]) -> dict[str, Any] | None:
    message = members.get("message")
    if not isinstance(message, dict):
        return None
    changed = dict(message)
    beside = _first(members, _MESSAGE_ID)
    if beside is not None and _first(message, _MESSAGE_ID) is None:
        for name in _MESSAGE_ID:
            changed.pop(name, None)
        changed["messageId"] = beside
    role = message.get("role")
    if isinstance(role, str) and role in roles:
        changed["role"] = roles[role]
    return None if changed == message else {**members, "message": changed}


def _first(members: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first member of these names that is not empty."""
    return next((members[name] for name in names if members.get(name)), None)
